// Images in the file system: those below a folder, those that need another.
#pragma once

#include <filesystem>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"

namespace ckpt::store {

/// The folders at and below `top` that hold an image, damaged ones too, by path. Links are not followed, images and
/// other file systems not entered; a folder that may not be read is passed over with a note. kNotFound: `top` is no
/// folder.
Result<std::vector<std::filesystem::path>> find_images(const std::filesystem::path& top, ProgressSink& notes,
                                                       const Cancel& cancel);

/// In the folder of an image: a symbolic link to each image that has it as its parent, under that one's id. A child
/// leaves it when it is committed, where it may; it says where to look, not that the child is still there.
inline constexpr const char* kChildrenName = "children";

/// The images that have the one in `dir` (canonical) as their parent: of those that its links lead to and of `known`.
/// An image whose parent lies elsewhere now does not need it; one whose parent is nowhere and has this one's id does.
std::vector<std::filesystem::path> children_of(const std::filesystem::path& dir,
                                               const std::vector<std::filesystem::path>& known);

}  // namespace ckpt::store
