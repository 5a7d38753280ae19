// Overlay file systems: what one is made from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"

namespace ckpt::state {

struct OverlayFolders {
  std::vector<std::string> layers;  ///< that it shows, the uppermost first
  std::vector<std::string> others;  ///< that it has besides
};
/// Those that an overlay's options, as mountinfo shows them, name; nothing: one without a whole path, or in a form that
/// is not known.
std::optional<OverlayFolders> overlay_folders(const std::string& options);

/// Whether each entry of an overlay's root, a handle with O_PATH, is that of the first of these folders, the uppermost
/// first, that has the name: of the same kind and size, and changed at the same time.
bool shows_layers(int overlay, const std::vector<UniqueFd>& layers);

/// What a mount is to be of the overlay that these options, as mountinfo shows them, are of.
enum class OverlayUse {
  kItself,
  kOnlyRead,  ///< the same files, and nothing is ever written to its folders
  kTry,       ///< none: a mount fails with EBUSY where the upper folder is in use by another one, else with EINVAL
};
/// For mount(2); empty: what there is no need to try, since it has no upper folder.
std::string overlay_mount_options(const std::string& options, OverlayUse use);
/// mount(2) takes no more.
bool can_be_overlay_options(const std::string& options);

/// In a helper that no other thread is in, and whose root folder is its namespace's: mounts the overlay on top of
/// `place`, a name in the root folder, with its folders looked up under `root`. Empty, with errno: it cannot be, EBUSY:
/// its upper folder is in use by another mount. Needs CAP_SYS_ADMIN.
UniqueFd mount_overlay(const std::string& source, const std::string& options, bool only_read, int root,
                       const char* place);

}  // namespace ckpt::state
