// Process images at URLs.
#pragma once

#include <filesystem>

#include "lib/base/result.h"
#include "lib/remote/mounted.h"

namespace ckpt::cli {

/// Of an image at a URL also its parents, which lie beside it: what is missing its reader says.
Result<void> mount_parents(remote::Mounted& mounted);

/// kPermission: the image lies at a URL, and nobody said `trust`: who may write there may have it say anything, and
/// ckpt cannot see who that is.
Result<void> check_trust(const std::filesystem::path& image, bool trust);

}  // namespace ckpt::cli
