// restore as root of an image that another user made: with that user's rights, whatever the image says.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/store/process_image.h"

namespace ckpt::engine {

/// Where the caller is root and the folder of the image belongs to another user: the whole process becomes that user,
/// with those of the image's groups that are his and with no capability but CAP_CHECKPOINT_RESTORE (old numbers, old
/// memory bounds), which no process of the image may ask for. There is no way back. Returns the user's name; nothing
/// was done where there is none. An image that names a capability, or a place in ckpt's own session, is kPermission, a
/// user unknown to this system kUnsupported.
Result<std::optional<std::string>> take_rights_of_owner(const std::filesystem::path& image);

/// What an image asks for that would be root's and not its owner's: capabilities, and a place in ckpt's session, with
/// its terminal. kPermission. To be asked of what is restored in the end: the owner can put another image in its place.
Result<void> refuse_what_is_roots(const store::TreeImage& tree, const std::filesystem::path& image);

}  // namespace ckpt::engine
