// Safetensors files out of any checkpoint: one file, or shards with model.safetensors.index.json as transformers reads
// them.
#pragma once

#include "formats/writers.h"

namespace ckpt::formats {

/// As Writer::plan. A folder gets model.safetensors, or model-0000i-of-0000n.safetensors where it is larger than
/// options.file_size (5 GB if 0). Tensors lie in the order of the reference writer: larger elements first, then by key.
Result<std::unique_ptr<tensor::Layout>> plan_safetensors(const tensor::Selection& selection,
                                                         const WriteOptions& options);

}  // namespace ckpt::formats
