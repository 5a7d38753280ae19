// What an image needs its reader to know, beyond the format version: a reader passes over members that it does not
// know, so a member without which the restored process would be another one is announced by name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::store {

/// The format that is written, and the only one that is read.
inline constexpr int kImageFormat = 3;
inline constexpr const char* kImageSchema = "ckpt.image/3";  ///< the same, as a manifest says it

struct Manifest;

/// Names for `Manifest::features`, in the order of the table.
std::vector<std::string> required_features(const Manifest& manifest);

/// kUnsupported, with their names: features that this ckpt does not know.
Result<void> check_features(std::span<const std::string> features);

}  // namespace ckpt::store
