#include "lib/tensor/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lib/base/text.h"

namespace ckpt::tensor {

namespace {
constexpr const char* kEverything = "**";
}

Result<GridRule> parse_grid_rule(const std::string& text) {
  const size_t equals = text.rfind('=');
  GridRule out;
  out.glob = equals == std::string::npos ? kEverything : text.substr(0, equals);
  std::string_view rest = std::string_view(text).substr(equals == std::string::npos ? 0 : equals + 1);
  for (;;) {
    uint64_t count = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
    if (error != std::errc() || count == 0)
      return fail(Code::kUsage, text, "is no grid: parts along each axis are wanted, as in \"**.weight=1x4\"");
    out.counts.push_back(count);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) return out;
    if (rest[0] != 'x')
      return fail(Code::kUsage, text, "is no grid: parts along each axis are wanted, as in \"**.weight=1x4\"");
    rest.remove_prefix(1);
  }
}

Result<Grid> Grid::choose(const Selection& selection, const Target& target, const GridChoice& choice) {
  for (const GridRule& rule : choice.rules) {
    if (!glob_match(rule.glob, target.key)) continue;
    for (size_t axis = target.shape.size(); axis < rule.counts.size() && rule.glob != kEverything; ++axis) {
      if (rule.counts[axis] > 1) {
        return fail(Code::kUsage, target.key,
                    fmt::format("has {} axes, and is to be cut along axis {}", target.shape.size(), axis));
      }
    }
    return regular(target, rule.counts);
  }
  if (choice.shard_size > 0) return slabs(target, choice.shard_size);
  return as_stored(selection, target);
}

Grid Grid::as_stored(const Selection& selection, const Target& target) {
  const Tensor& tensor = selection.tensor(target);
  return tensor.shape == target.shape ? as_stored(tensor) : whole(target);
}

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

Grid Grid::slabs(const Target& target, uint64_t max_bytes) {
  Grid out;
  if (element_count(target.shape).value_or(0) == 0) return out;
  uint64_t room = std::max<uint64_t>(1, max_bytes / item_size(target.dtype));
  const size_t rank = target.shape.size();
  out.step_.assign(rank, 1);
  out.counts_.assign(rank, 1);
  for (size_t axis = rank; axis-- > 0;) {
    out.step_[axis] = std::min(target.shape[axis], room);
    out.counts_[axis] = (target.shape[axis] + out.step_[axis] - 1) / out.step_[axis];
    // Once an axis is cut, every axis before it is cut into ones: that is what keeps a slab one run of a row-major
    // tensor.
    room = out.counts_[axis] == 1 ? room / target.shape[axis] : 1;
    out.size_ *= out.counts_[axis];
  }
  return out;
}

Grid Grid::regular(const Target& target, const Shape& counts) {
  Grid out;
  if (element_count(target.shape).value_or(0) == 0) return out;
  out.step_ = target.shape;
  out.counts_.assign(target.shape.size(), 1);
  for (size_t axis = 0; axis < std::min(counts.size(), target.shape.size()); ++axis) {
    const uint64_t parts = std::min(counts[axis], target.shape[axis]);
    out.step_[axis] = (target.shape[axis] + parts - 1) / parts;
    out.counts_[axis] = (target.shape[axis] + out.step_[axis] - 1) / out.step_[axis];
    out.size_ *= out.counts_[axis];
  }
  return out;
}

Region Grid::piece(const Selection& selection, const Target& target, size_t index) const {
  if (!order_.empty()) return piece(selection.tensor(target), index);
  Region out{Shape(target.shape.size(), 0), target.shape};
  if (step_.empty()) return out;
  for (size_t axis = step_.size(); axis-- > 0;) {
    out.offset[axis] = index % counts_[axis] * step_[axis];
    out.shape[axis] = std::min(step_[axis], target.shape[axis] - out.offset[axis]);
    index /= counts_[axis];
  }
  return out;
}

Region Grid::piece(const Tensor& tensor, size_t index) const {
  if (order_.empty()) return {Shape(tensor.shape.size(), 0), tensor.shape};
  const Shard& shard = tensor.shards[order_[index]];
  return {shard.offset, shard.shape};
}

std::optional<uint32_t> Grid::shard(size_t index) const {
  if (order_.empty()) return std::nullopt;
  return order_[index];
}

}  // namespace ckpt::tensor
