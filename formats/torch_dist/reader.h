// Megatron-Core's `torch_dist` backend and torch's own distributed checkpoints (DCP).
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

bool recognises_torch_dist(const std::filesystem::path& path);
bool recognises_dcp(const std::filesystem::path& path);
/// For both: Megatron's has metadata.json, a common state, and objects wrapped in a list.
Result<tensor::Catalog> read_torch_dist(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
