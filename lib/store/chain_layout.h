// Where the images of a chain lie to each other, for who takes them elsewhere.
#pragma once

#include <filesystem>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::store {

struct ChainImage {
  std::filesystem::path dir;
  Manifest manifest;
};

/// The image in `dir` (canonical) and its parents, the newest first, by their manifests alone. A parent that is not
/// there is kNotFound, another image in its place or a cycle kCorrupt, one that is named by an absolute path or through
/// a link, which hold on this host alone, kUnsupported.
Result<std::vector<ChainImage>> find_chain(const std::filesystem::path& dir);

/// The folder below which all of them lie.
std::filesystem::path common_folder(const std::vector<ChainImage>& chain);

}  // namespace ckpt::store
