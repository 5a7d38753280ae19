// Do the shards of a tensor tile it? Boxes are split along axis after axis wherever a plane cuts none of them: grids
// and all layouts made by repeated cutting come apart in O(n log n) a level. What no plane separates is compared
// pairwise, and the whole stops at a fixed amount of work, so that a hostile layout costs no more than an honest one.
#include <algorithm>
#include <numeric>

#include "lib/base/checked.h"
#include "lib/tensor/catalog.h"

namespace ckpt::tensor {

namespace {

constexpr size_t kMaxFindings = 16;
constexpr uint64_t kMaxWork = 400'000'000;

std::string box_text(const Shape& offset, const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(offset[i]) + ":" + std::to_string(offset[i] + shape[i]);
  }
  return out + "]";
}

/// A set of shards and the box that they have to tile.
struct ShardPart {
  Shape lo, hi;
  std::vector<uint32_t> shards;
};

class Tiling {
 public:
  Tiling(const Tensor& tensor, std::vector<std::string>& findings) : tensor_(tensor), findings_(findings) {}

  void check(std::vector<uint32_t> shards) {
    std::vector<ShardPart> parts;
    parts.push_back({Shape(tensor_.shape.size(), 0), tensor_.shape, std::move(shards)});
    while (!parts.empty() && findings_.size() < kMaxFindings) {
      ShardPart part = std::move(parts.back());
      parts.pop_back();
      if (work_ > kMaxWork) {
        findings_.push_back(tensor_.key + ": the shards are too irregular to be checked");
        return;
      }
      if (!finished(part) && !split(part, parts)) compare_pairs(part);
    }
  }

 private:
  uint64_t lo(uint32_t shard, size_t axis) const { return tensor_.shards[shard].offset[axis]; }
  uint64_t hi(uint32_t shard, size_t axis) const { return lo(shard, axis) + tensor_.shards[shard].shape[axis]; }

  void report_gap(const Shape& from, const Shape& to) {
    Shape extent(from.size());
    for (size_t i = 0; i < from.size(); ++i) extent[i] = to[i] - from[i];
    findings_.push_back(tensor_.key + ": no shard covers " + box_text(from, extent));
  }

  bool finished(const ShardPart& part) {
    if (part.shards.empty()) report_gap(part.lo, part.hi);
    if (part.shards.size() != 1) return part.shards.empty();
    const Shard& shard = tensor_.shards[part.shards[0]];
    // What is left of the box on either side of the only shard, axis by axis.
    Shape from = part.lo, to = part.hi;
    for (size_t axis = 0; axis < from.size(); ++axis) {
      uint64_t begin = shard.offset[axis], end = begin + shard.shape[axis];
      if (from[axis] < begin) {
        Shape edge = to;
        edge[axis] = begin;
        report_gap(from, edge);
      }
      if (end < to[axis]) {
        Shape edge = from;
        edge[axis] = end;
        report_gap(edge, to);
      }
      from[axis] = begin;
      to[axis] = end;
    }
    return true;
  }

  /// Cuts `part` along the first axis on which some plane passes between shards.
  bool split(ShardPart& part, std::vector<ShardPart>& parts) {
    for (size_t axis = 0; axis < part.lo.size(); ++axis) {
      std::sort(part.shards.begin(), part.shards.end(),
                [&](uint32_t a, uint32_t b) { return lo(a, axis) < lo(b, axis); });
      work_ += part.shards.size() * 8;
      uint64_t reach = hi(part.shards[0], axis);
      bool apart = false;
      for (uint32_t shard : part.shards) {
        apart = apart || lo(shard, axis) >= reach;
        reach = std::max(reach, hi(shard, axis));
      }
      if (!apart) continue;
      cut(part, axis, parts);
      return true;
    }
    return false;
  }

  void cut(const ShardPart& part, size_t axis, std::vector<ShardPart>& parts) {
    ShardPart piece{part.lo, part.hi, {}};
    uint64_t reach = part.lo[axis];
    for (uint32_t shard : part.shards) {
      if (lo(shard, axis) >= reach && !piece.shards.empty()) {
        piece.hi[axis] = lo(shard, axis);
        Shape next = piece.hi;
        parts.push_back(std::move(piece));
        piece = {part.lo, part.hi, {}};
        piece.lo[axis] = next[axis];
      }
      reach = std::max(reach, hi(shard, axis));
      piece.shards.push_back(shard);
    }
    parts.push_back(std::move(piece));
  }

  /// Shards that no plane separates: two of them overlap, or they wind around each other like a pinwheel.
  void compare_pairs(const ShardPart& part) {
    uint64_t covered = 0;
    for (size_t i = 0; i < part.shards.size(); ++i) {
      const Shard& a = tensor_.shards[part.shards[i]];
      covered += element_count(a.shape).value_or(0);
      for (size_t j = i + 1; j < part.shards.size(); ++j) {
        if (++work_ > kMaxWork)
          return findings_.push_back(tensor_.key + ": the shards are too irregular to be checked");
        const Shard& b = tensor_.shards[part.shards[j]];
        if (!overlap(a, b)) continue;
        findings_.push_back(tensor_.key + ": the shards " + box_text(a.offset, a.shape) + " and " +
                            box_text(b.offset, b.shape) + " overlap");
        if (findings_.size() >= kMaxFindings) return;
      }
    }
    Shape extent(part.lo.size());
    for (size_t i = 0; i < extent.size(); ++i) extent[i] = part.hi[i] - part.lo[i];
    uint64_t wanted = element_count(extent).value_or(0);
    if (covered < wanted) {
      findings_.push_back(tensor_.key + ": no shard covers " + std::to_string(wanted - covered) + " elements of " +
                          box_text(part.lo, extent));
    }
  }

  static bool overlap(const Shard& a, const Shard& b) {
    for (size_t i = 0; i < a.offset.size(); ++i) {
      if (a.offset[i] >= b.offset[i] + b.shape[i] || b.offset[i] >= a.offset[i] + a.shape[i]) return false;
    }
    return true;
  }

  const Tensor& tensor_;
  std::vector<std::string>& findings_;
  uint64_t work_ = 0;
};

/// Nothing when the shard is a box inside the tensor.
std::optional<std::string> misplaced(const Tensor& tensor, const Shard& shard) {
  const size_t rank = tensor.shape.size();
  if (shard.offset.size() != rank || shard.shape.size() != rank) {
    return tensor.key + ": a shard has another number of axes than the tensor";
  }
  for (size_t i = 0; i < rank; ++i) {
    auto end = checked_add(shard.offset[i], shard.shape[i]);
    if (!end || *end > tensor.shape[i]) {
      return tensor.key + ": a shard at offset " + std::to_string(shard.offset[i]) + " of axis " + std::to_string(i) +
             " with length " + std::to_string(shard.shape[i]) + " ends past the tensor's " +
             std::to_string(tensor.shape[i]);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> check_shards(const Tensor& tensor) {
  std::vector<std::string> findings;
  auto count = element_count(tensor.shape);
  if (!count || !checked_mul<uint64_t>(*count, item_size(tensor.dtype))) {
    findings.push_back(tensor.key + ": the shape has more elements than can be counted");
    return findings;
  }
  std::vector<uint32_t> filled;
  for (uint32_t i = 0; i < tensor.shards.size() && findings.size() < kMaxFindings; ++i) {
    if (auto text = misplaced(tensor, tensor.shards[i])) findings.push_back(*text);
    else if (element_count(tensor.shards[i].shape) != uint64_t{0}) filled.push_back(i);
  }
  if (!findings.empty() || *count == 0) return findings;
  if (filled.empty()) return {tensor.key + ": no shard covers it"};
  if (tensor.shape.empty()) {
    if (filled.size() > 1) findings.push_back(tensor.key + ": a scalar has more than one shard");
    return findings;
  }
  Tiling(tensor, findings).check(std::move(filled));
  return findings;
}

}  // namespace ckpt::tensor
