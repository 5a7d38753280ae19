// CLOCK_MONOTONIC and CLOCK_BOOTTIME of a time namespace.
#pragma once

#include "lib/base/result.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::state {

/// Of the time namespace that this process is in.
Result<store::Clocks> read_clocks();

/// Of a process that has unshared its time namespace and has no child there yet (0: this one): for its children the
/// clocks go on from here. This process is in the time namespace that it was in. kIo: the kernel takes no such offset.
Result<void> set_clocks_of_children(const store::Clocks& clocks, int pid = 0);

}  // namespace ckpt::state
