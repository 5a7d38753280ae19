// The numbers of memory spaces.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Gives every address space, shared memory and deleted file of `tree` its number. What the parent image has, too (the
/// same pid, the same inode), keeps the number it has there, so that unchanged pages are found; likewise for other
/// earlier inventories of the tree. kNoRoom beyond store::kMaxSpaces.
Result<void> number_spaces(store::TreeImage& tree, const std::vector<const store::TreeImage*>& earlier);

}  // namespace ckpt::capture
