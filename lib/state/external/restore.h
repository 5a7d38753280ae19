// Terminals and pipes from outside the tree: what takes their place (options.h).
#pragma once

#include <utility>
#include <vector>

#include "lib/state/descriptors/inherited.h"
#include "lib/state/external/options.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// An inherited number for each of its descriptors; one that ckpt was not given follows the first of its group. What is
/// missing is a reason against.
std::vector<std::pair<int, store::FdSlot>> take_external(const store::Descriptor& descriptor,
                                                         const state::ExternalOptions& options, Inherited& inherited,
                                                         Reasons& reasons);

/// A reason against: an epoll set watches a pipe that /dev/null takes the place of, which cannot be watched.
void check_external(const store::TreeImage& tree, const state::ExternalOptions& options, Reasons& reasons);

}  // namespace ckpt::restore
