// Plain torch.save files (.pt, .pth, .bin): the tensors of a state dict, nested dicts and lists joined by dots.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

bool recognises_torch_save(const std::filesystem::path& path);
Result<tensor::Catalog> read_torch_save(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
