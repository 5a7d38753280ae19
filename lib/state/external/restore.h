// Terminals and pipes from outside the tree, taken from ckpt's own descriptors of the same numbers (--shell-job).
#pragma once

#include <utility>
#include <vector>

#include "lib/state/descriptors/inherited.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// An inherited number for each of its descriptors; one that ckpt was not given follows the first of its group. What is
/// missing is a reason against.
std::vector<std::pair<int, store::FdSlot>> take_external(const store::Descriptor& descriptor, bool shell_job,
                                                         Inherited& inherited, Reasons& reasons);

}  // namespace ckpt::restore
