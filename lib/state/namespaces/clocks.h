// CLOCK_MONOTONIC and CLOCK_BOOTTIME of a time namespace.
#pragma once

#include "lib/base/result.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::state {

/// Of the time namespace that this process is in.
Result<store::Clocks> read_clocks();

/// In a process that has unshared its time namespace and has no child there yet: for its children the clocks go on from
/// here. kIo: the kernel takes no such offset.
Result<void> set_clocks_of_children(const store::Clocks& clocks);

}  // namespace ckpt::state
