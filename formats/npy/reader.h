// numpy's files: .npy, .npz, and folders of .npy files.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

/// One array, whose key is the file's name without `.npy`; or a folder with .npy files in it or its subfolders, whose
/// keys are their paths below it, with `/`, without `.npy`.
bool recognises_npy(const std::filesystem::path& path);
Result<tensor::Catalog> read_npy(const std::filesystem::path& path, const ReadOptions& options);

/// A zip archive of arrays, stored or deflated; keys are the members' names without `.npy`.
bool recognises_npz(const std::filesystem::path& path);
Result<tensor::Catalog> read_npz(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
