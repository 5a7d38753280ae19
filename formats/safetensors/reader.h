// safetensors: one file, or a folder of them with or without an index (formats.md 2.8, 3.6).
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

bool recognises_safetensors(const std::filesystem::path& path);
Result<tensor::Catalog> read_safetensors(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
