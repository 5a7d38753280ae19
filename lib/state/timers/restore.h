// Interval timers and POSIX timers.
#pragma once

#include "lib/base/progress.h"
#include "lib/state/reasons.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// A timer whose id this kernel could not give back.
void check_timers(const store::ProcessImage& image, Reasons& reasons);

/// setitimer and timer_create, armed with the time left. As late as possible.
void set_timers(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch);
/// After that batch: that it may not choose their ids as it could, on a kernel before 6.15.
void tell_timer_ids(const store::ProcessImage& image, const SyscallBatch& batch, ProgressSink& progress);

}  // namespace ckpt::restore
