#include "lib/tensor/grid.h"

#include <algorithm>

namespace ckpt::tensor {

Grid Grid::as_stored(const Tensor& tensor) {
  Grid out;
  if (element_count(tensor.shape).value_or(0) == 0) return out;
  for (size_t i = 0; i < tensor.shards.size(); ++i) {
    if (element_count(tensor.shards[i].shape).value_or(0) > 0) out.order_.push_back(static_cast<uint32_t>(i));
  }
  std::sort(out.order_.begin(), out.order_.end(),
            [&](uint32_t a, uint32_t b) { return tensor.shards[a].offset < tensor.shards[b].offset; });
  out.size_ = out.order_.size();
  return out;
}

Grid Grid::slabs(const Tensor& tensor, uint64_t max_bytes) {
  Grid out;
  if (element_count(tensor.shape).value_or(0) == 0) return out;
  uint64_t room = std::max<uint64_t>(1, max_bytes / item_size(tensor.dtype));
  const size_t rank = tensor.shape.size();
  out.slab_.assign(rank, 1);
  out.counts_.assign(rank, 1);
  for (size_t axis = rank; axis-- > 0;) {
    out.slab_[axis] = std::min(tensor.shape[axis], room);
    out.counts_[axis] = (tensor.shape[axis] + out.slab_[axis] - 1) / out.slab_[axis];
    // Once an axis is cut, every axis before it is cut into ones: that is what keeps a slab one run of a row-major tensor.
    room = out.counts_[axis] == 1 ? room / tensor.shape[axis] : 1;
    out.size_ *= out.counts_[axis];
  }
  return out;
}

Region Grid::piece(const Tensor& tensor, size_t index) const {
  if (!order_.empty()) {
    const Shard& shard = tensor.shards[order_[index]];
    return {shard.offset, shard.shape};
  }
  Region out{Shape(tensor.shape.size(), 0), tensor.shape};
  if (slab_.empty()) return out;
  for (size_t axis = slab_.size(); axis-- > 0;) {
    out.offset[axis] = index % counts_[axis] * slab_[axis];
    out.shape[axis] = std::min(slab_[axis], tensor.shape[axis] - out.offset[axis]);
    index /= counts_[axis];
  }
  return out;
}

std::optional<uint32_t> Grid::shard(size_t index) const {
  if (order_.empty()) return std::nullopt;
  return order_[index];
}

namespace {

/// The region's bytes inside a shard that holds it whole, if they are one run there.
std::optional<FileRange> run_in_shard(const Tensor& tensor, const Shard& shard, const Region& region) {
  if (shard.encoding != Encoding::kRaw) return std::nullopt;
  const Shape& stored = shard.stored_shape.empty() ? shard.shape : shard.stored_shape;
  uint64_t stride = item_size(tensor.dtype), length = stride, begin = 0;
  bool open = false;  // an inner axis is not taken whole: every axis before it must be a single step
  for (size_t axis = tensor.shape.size(); axis-- > 0;) {
    if (region.offset[axis] < shard.offset[axis] ||
        region.offset[axis] + region.shape[axis] > shard.offset[axis] + shard.shape[axis]) {
      return std::nullopt;
    }
    if (open && region.shape[axis] != 1) return std::nullopt;
    open = open || region.shape[axis] != stored[axis];
    begin += (region.offset[axis] - shard.offset[axis]) * stride;
    length *= region.shape[axis];
    stride *= stored[axis];
  }
  if (begin + length > shard.where.length) return std::nullopt;
  return FileRange{shard.where.file, shard.where.offset + begin, length};
}

}  // namespace

std::optional<FileRange> raw_run(const Tensor& tensor, const Region& region, std::optional<uint32_t> hint) {
  if (hint) return run_in_shard(tensor, tensor.shards[*hint], region);
  for (const Shard& shard : tensor.shards) {
    if (auto run = run_in_shard(tensor, shard, region)) return run;
  }
  return std::nullopt;
}

}  // namespace ckpt::tensor
