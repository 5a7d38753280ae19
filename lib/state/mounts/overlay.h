// Overlay file systems: what one is made from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"

namespace ckpt::state {

/// The folders that an overlay's options, as mountinfo shows them, name; nothing: one without a whole path, or in a
/// form that is not known.
std::optional<std::vector<std::string>> overlay_folders(const std::string& options);

/// Whether each name in an overlay's root, a handle with O_PATH, is in one of these folders.
bool shows_layers(int overlay, const std::vector<UniqueFd>& layers);

}  // namespace ckpt::state
