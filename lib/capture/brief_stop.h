// A running process's first thread, stopped for a call or two of its own: what must be done inside, and needs no more.
#pragma once

#include <functional>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"

namespace ckpt::capture {

/// Runs `calls` with the first thread of `pid` borrowed, the others go on meanwhile. Returns how long it stood, some 0.1 ms
/// beside the calls. `gadgets` may be out of date. `name` is that of the span in a timeline. The target is as it was after a failure, too.
Result<uint64_t> stop_briefly(int pid, proc::Gadgets gadgets, const char* name,
                              const std::function<Result<void>(proc::BorrowedThread&)>& calls);

}  // namespace ckpt::capture
