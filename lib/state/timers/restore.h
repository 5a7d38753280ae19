// Interval timers and POSIX timers.
#pragma once

#include "lib/state/reasons.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// A timer whose id this kernel could not give back.
void check_timers(const store::ProcessImage& image, Reasons& reasons);

/// setitimer and timer_create, armed with the time left. As late as possible.
void set_timers(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch);

}  // namespace ckpt::restore
