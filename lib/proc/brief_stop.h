// A running process, stopped for a call or two of its first thread: what must be done inside, and needs no more.
#pragma once

#include <functional>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"

namespace ckpt::proc {

/// Runs `calls` with the first thread of `pid` borrowed. Returns how long the process stood, some 0.1 ms beside the
/// calls and what it takes to stop its other threads. `gadgets` may be out of date. `name` is that of the span in a
/// timeline. The target is as it was after a failure, too.
Result<uint64_t> stop_briefly(int pid, Gadgets gadgets, const char* name,
                              const std::function<Result<void>(BorrowedThread&)>& calls);

}  // namespace ckpt::proc
