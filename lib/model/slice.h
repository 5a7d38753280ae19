// Parts of tensors as people write them: numpy's basic indexing.
#pragma once

#include <string_view>

#include "lib/tensor/read.h"

namespace ckpt::model {

/// What a slice takes of a tensor: a box, and its shape with the axes gone that a single index took.
struct Slice {
  tensor::Region region;
  tensor::Shape shape;
};

/// "0:10, :, -1" or "..., 3": one term an axis, `begin:end` (either may be missing, negative ones count from the end,
/// ends past the axis are cut as numpy does), a single index (past the axis: refused), or one `...` for all axes that
/// are not named; axes at the end may be left out. Steps other than 1 are refused. kUsage: the text is wrong, or does
/// not fit the shape.
Result<Slice> parse_slice(std::string_view text, const tensor::Shape& shape);

}  // namespace ckpt::model
