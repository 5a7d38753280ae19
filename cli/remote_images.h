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

/// Before an image is read in other namespaces: where it lies at a URL the requests are made in the network of now.
/// False: it is on this host. kUnsupported: a program speaks for the URL, and would run among those who are there.
Result<bool> fetch_from_elsewhere(const std::filesystem::path& image);

}  // namespace ckpt::cli
