// A folder of .npy files out of any checkpoint.
//
//   KEY.npy        one tensor; a `/` in the key makes a folder
//   dtypes.json    {"KEY": "bfloat16", ...} for those whose type numpy lacks: they are written as void types of their
//   size
#pragma once

#include "formats/writers.h"

namespace ckpt::formats {

/// As Writer::plan.
Result<std::unique_ptr<tensor::Layout>> plan_npy(const tensor::Selection& selection, const WriteOptions& options);

}  // namespace ckpt::formats
