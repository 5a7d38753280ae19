// GGUF files, llama.cpp's models.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

/// A file, or a folder that holds one, or all parts of one (split.count). Quantised tensors are rows of bytes (uint8).
bool recognises_gguf(const std::filesystem::path& path);
Result<tensor::Catalog> read_gguf(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
