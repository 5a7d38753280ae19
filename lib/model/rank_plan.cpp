#include "lib/model/rank_plan.h"

#include <algorithm>

#include "lib/base/text.h"

namespace ckpt::model {

uint64_t RankLayout::ranks() const {
  uint64_t out = 1;
  for (const Dimension& dimension : world) out *= dimension.size;
  return out;
}

uint64_t RankLayout::coordinate(uint64_t rank, size_t dimension) const {
  for (size_t i = 0; i < dimension; ++i) rank /= world[i].size;
  return rank % world[dimension].size;
}

const LayoutRule* RankLayout::rule(std::string_view key) const {
  for (const LayoutRule& rule : rules) {
    if (glob_match(rule.glob, key)) return &rule;
  }
  return nullptr;
}

namespace {

/// Part `index` of `parts` of [begin, begin + length).
bool take_part(uint64_t& begin, uint64_t& length, uint64_t index, uint64_t parts, bool uneven) {
  if (!uneven && length % parts != 0) return false;
  const uint64_t step = length / parts + (length % parts != 0 ? 1 : 0);
  const uint64_t from = step == 0 || index > length / step ? length : std::min(length, index * step);
  begin += from;
  length = std::min(step, length - from);
  return true;
}

/// Elements [begin, end) of a box, counted row-major, as boxes: at most two for each axis and one in the middle.
void flat_boxes(const tensor::Region& box, uint64_t begin, uint64_t end, std::vector<tensor::Region>& out) {
  const size_t rank = box.shape.size();
  tensor::Shape size(rank + 1, 1);  // elements below each axis
  for (size_t axis = rank; axis-- > 0;) size[axis] = size[axis + 1] * box.shape[axis];
  while (begin < end) {
    // The outermost axis of which whole steps fit: from here as many of them as do, up to where the axis above goes on.
    size_t axis = 0;
    while (axis < rank && (begin % size[axis + 1] != 0 || end - begin < size[axis + 1])) ++axis;
    tensor::Region piece{tensor::Shape(rank), tensor::Shape(rank, 1)};
    uint64_t rest = begin;
    for (size_t i = 0; i < rank; ++i) {
      piece.offset[i] = box.offset[i] + rest / size[i + 1];
      rest %= size[i + 1];
      if (i > axis) piece.shape[i] = box.shape[i];
    }
    if (rank == 0) {
      out.push_back(std::move(piece));
      return;
    }
    const uint64_t left = box.shape[axis] - (piece.offset[axis] - box.offset[axis]);
    piece.shape[axis] = std::min(left, (end - begin) / size[axis + 1]);
    begin += piece.shape[axis] * size[axis + 1];
    out.push_back(std::move(piece));
  }
}

}  // namespace

Result<std::vector<tensor::Region>> boxes_of_rank(const RankLayout& layout, const LayoutRule& rule, uint64_t rank,
                                                  const tensor::Tensor& tensor) {
  std::vector<tensor::Region> out;
  if (rule.skip) return out;
  tensor::Region cell{tensor::Shape(tensor.shape.size(), 0), tensor.shape};
  const auto axes = static_cast<int64_t>(tensor.shape.size());
  for (const Cut& cut : rule.cuts) {
    const int64_t axis = cut.axis < 0 ? cut.axis + axes : cut.axis;
    if (axis < 0 || axis >= axes) {
      return fail(
          Code::kUsage, tensor.key,
          rule.glob + " cuts axis " + std::to_string(cut.axis) + " of a tensor that has " + std::to_string(axes));
    }
    const auto at = static_cast<size_t>(axis);
    const uint64_t index = cut.dimension ? layout.coordinate(rank, *cut.dimension) : cut.offset;
    const uint64_t length = cell.shape[at];
    if (!take_part(cell.offset[at], cell.shape[at], index, cut.fragments, rule.uneven)) {
      return fail(Code::kUsage, tensor.key,
                  rule.glob + " cuts axis " + std::to_string(axis) + " of length " + std::to_string(length) + " into " +
                      std::to_string(cut.fragments) + " parts, which are not equal (\"uneven\" allows that)");
    }
  }
  const uint64_t elements = tensor::element_count(cell.shape).value_or(0);
  if (elements == 0) return out;
  if (!rule.flatten) {
    out.push_back(std::move(cell));
    return out;
  }
  uint64_t begin = 0, length = elements;
  const Dimension& dimension = layout.world[*rule.flatten];
  // The last rank's part is shorter where it does not come out even, as Megatron's distributed optimizer pads it.
  take_part(begin, length, layout.coordinate(rank, *rule.flatten), dimension.size, true);
  flat_boxes(cell, begin, begin + length, out);
  return out;
}

uint64_t StridedRead::bytes() const {
  uint64_t out = range.length;
  for (const Repeat& r : repeat) out *= r.count;
  return out;
}

namespace {

/// The part of a shard that lies in the region; nothing where they do not meet.
std::optional<StridedRead> read_of_shard(const tensor::Tensor& tensor, const tensor::Shard& shard,
                                         const tensor::Region& region) {
  const tensor::Shape& stored = shard.stored_shape.empty() ? shard.shape : shard.stored_shape;
  StridedRead out;
  out.range = shard.where;
  uint64_t stride = tensor::item_size(tensor.dtype), run = stride, from = 0;
  bool joined = true;  // the axes so far lie in one run
  for (size_t axis = tensor.shape.size(); axis-- > 0;) {
    const uint64_t begin = std::max(shard.offset[axis], region.offset[axis]);
    const uint64_t end = std::min(shard.offset[axis] + shard.shape[axis], region.offset[axis] + region.shape[axis]);
    if (begin >= end) return std::nullopt;
    const uint64_t count = end - begin;
    from += (begin - shard.offset[axis]) * stride;
    if (joined) {
      run *= count;
      joined = count == stored[axis];
    } else if (count > 1) {
      if (!out.repeat.empty() && out.repeat.front().count * out.repeat.front().stride == stride)
        out.repeat.front().count *= count;
      else out.repeat.insert(out.repeat.begin(), {count, stride});
    }
    stride *= stored[axis];
  }
  if (shard.encoding == tensor::Encoding::kRaw && shard.where.length != 0) {
    out.range.offset += from;
    out.range.length = run;
    return out;
  }
  if (shard.encoding == tensor::Encoding::kFill) return std::nullopt;
  out.whole = true;
  out.repeat.clear();
  if (shard.where.length == 0) out.range = shard.item;
  return out;
}

}  // namespace

std::vector<StridedRead> reads_of(const tensor::Tensor& tensor, const tensor::Region& region) {
  std::vector<StridedRead> out;
  for (const tensor::Shard& shard : tensor.shards) {
    if (auto read = read_of_shard(tensor, shard, region)) out.push_back(std::move(*read));
  }
  std::sort(out.begin(), out.end(), [](const StridedRead& a, const StridedRead& b) {
    return std::tie(a.range.file, a.range.offset) < std::tie(b.range.file, b.range.offset);
  });
  return out;
}

}  // namespace ckpt::model
