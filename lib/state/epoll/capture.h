// Epoll sets, from the fdinfo of a descriptor.
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

/// An epoll set names descriptors by the number they had when they were added. One that was closed or replaced since is
/// watched as long as its description is open somewhere.
/// Once all descriptors are there. A set that watches what is gone is a blocker.
void find_epoll_targets(Inventory& found);

}  // namespace ckpt::capture
