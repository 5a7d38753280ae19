// restore as root of an image that another user made: with that user's rights, whatever the image says.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/result.h"

namespace ckpt::engine {

/// Where the caller is root and the folder of the image belongs to another user: the whole process becomes that user,
/// with those of the image's groups that are his and with no capability but CAP_CHECKPOINT_RESTORE (old numbers, old
/// memory bounds), which no process of the image may ask for. There is no way back. Returns the user's name; nothing
/// was done where there is none. An image that names a capability, or a place in ckpt's own session, is kPermission, a
/// user unknown to this system kUnsupported.
Result<std::optional<std::string>> take_rights_of_owner(const std::filesystem::path& image);

}  // namespace ckpt::engine
