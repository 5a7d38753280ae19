// How a tensor is cut into pieces to be written.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/selection.h"

namespace ckpt::tensor {

/// How many parts the tensors whose keys match are cut into along each axis: "1x4". Axes that are not named are not
/// cut.
struct GridRule {
  std::string glob;
  Shape counts;
};
/// "GLOB=AxB" or "AxB" (for all, and tensors of fewer axes are cut along those that they have). kUsage: anything else,
/// a part count of 0.
Result<GridRule> parse_grid_rule(const std::string& text);

/// What the user asked for, as to pieces: the first rule that matches, else the size, else the source's own pieces.
struct GridChoice {
  std::vector<GridRule> rules;
  uint64_t shard_size = 0;
};

/// The pieces of one target, in row-major order of their offsets. They tile it whenever the source's shards tile the
/// source
/// (`check_source`). A tensor without elements has one piece, itself.
class Grid {
 public:
  /// kUsage: a rule that does not fit the tensor.
  static Result<Grid> choose(const Selection& selection, const Target& target, const GridChoice& choice);
  /// One piece per shard that holds elements; for targets of another shape than their source's, the whole.
  static Grid as_stored(const Selection& selection, const Target& target);
  static Grid as_stored(const Tensor& tensor);
  /// Equal slabs along the leading axes, each at most `max_bytes` (but one element at least); the last ones may be
  /// smaller.
  static Grid slabs(const Target& target, uint64_t max_bytes);
  /// counts[axis] parts along each axis, each of ceil(length / count) but the last ones, as torch.chunk cuts; parts
  /// that would have no elements are left out.
  static Grid regular(const Target& target, const Shape& counts);
  static Grid whole(const Target& target) { return regular(target, {}); }

  size_t size() const { return size_; }
  Region piece(const Selection& selection, const Target& target, size_t index) const;
  /// Of a grid `as_stored`, of this tensor.
  Region piece(const Tensor& tensor, size_t index) const;
  /// The source's shard that the piece is, where the pieces are the shards.
  std::optional<uint32_t> shard(size_t index) const;
  /// The shape of all pieces but the last ones along an axis, where they are cut that way (not `as_stored`).
  const Shape& step() const { return step_; }

 private:
  size_t size_ = 1;
  std::vector<uint32_t> order_;  ///< as_stored: shards by offset
  Shape step_, counts_;          ///< else: the shape of a piece, and how many there are along each axis
};

}  // namespace ckpt::tensor
