// Optimizer tensors as Megatron 0.8 to 0.15 want them: flattened, a row per shard of their model tensor
// (formats.md 2.7).
#pragma once

#include <vector>

#include "formats/writers.h"
#include "lib/base/result.h"

namespace ckpt::torch_dist {

/// Of one target: into how many shards its model tensor is cut along each axis. Empty: it is stored in its own shape.
using RowCounts = tensor::Shape;

/// One per tensor of the selection. `options.mcore`: "0.13", "0.13.1"; "auto" or empty: rows where the source had rows.
/// `grids`: of the tensors as they would be stored otherwise. kUsage: no release, one that cannot read torch_dist, or a
/// model tensor that is not cut in a regular grid, named. Notes: which releases can read it.
Result<std::vector<RowCounts>> plan_rows(const tensor::Selection& selection, const std::vector<tensor::Grid>& grids,
                                         const formats::WriteOptions& options, std::vector<std::string>& notes);

/// A tensor's shape as it is stored, and a piece of its grid (cut into `counts` parts) in it.
tensor::Shape row_shape(const tensor::Target& target, const RowCounts& counts);
tensor::Region row_of(const tensor::Target& target, const RowCounts& counts, const tensor::Region& piece);

}  // namespace ckpt::torch_dist
