// Requests of io_uring in flight in processes that stand still.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/state/io_uring/capture.h"

namespace ckpt::capture {

/// Waits until nothing is in flight in the rings that these descriptors of the process lead to, but for requests that
/// wait until a file is ready: nobody writes to memory for those. What a disk answers is there within milliseconds; it
/// is the thread that made a request which puts its completion into the queue, on its way out of the kernel: each is
/// made to enter the kernel, with nothing to do. False: something is in flight still that may go on for long.
/// `gadgets` null: it cannot be waited for.
Result<bool> drain_rings(const proc::FrozenProcess& frozen, const proc::Gadgets* gadgets,
                         const std::vector<RingPlace>& rings);

}  // namespace ckpt::capture
