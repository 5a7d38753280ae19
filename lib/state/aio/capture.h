// Native AIO contexts of a tree.
#pragma once

#include "lib/base/result.h"
#include "lib/proc/procfs.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

/// Whether a mapping is the ring of an AIO context.
bool is_aio_ring(const proc::Vma& vma);

/// After the mappings of every process. What is in flight is a blocker that passes: of a tree that stands still all of
/// it, before that what waits until a file is ready.
Result<void> inventory_aio(Walk& walk);

/// Waits until nothing is in flight in the contexts of a process that stands still, but for requests that wait until a
/// file is ready: nobody writes to memory for those. False: something is in flight still that may go on for long.
Result<bool> drain_aio(int pid, int pidfd);

}  // namespace ckpt::capture
