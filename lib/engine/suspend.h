// suspend and resume: processes let go of their GPUs, and get their state back. They go on running meanwhile, up to
// their next GPU call, which waits.
#pragma once

#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/engine/device_hold.h"

namespace ckpt::engine {

struct SuspendReport {
  std::vector<int> pids;   ///< those that had GPU state
  store::GpuState state;   ///< what became free
  uint64_t lock_us = 0, checkpoint_us = 0;
};
/// `pid` with all its descendants. kNotFound: no such process, or none with GPU state; kBusy: work was not done in
/// time. Every failure leaves them running as they were, or is kTargetAltered.
Result<SuspendReport> suspend(int pid, const GpuOptions& options, const Cancel& cancel);

struct ResumeReport {
  std::vector<int> pids;  ///< those that were brought back
  uint64_t restore_us = 0;
};
/// The processes with all their descendants: what is suspended gets its GPU state back, what is merely locked is
/// unlocked, what runs stays as it is. kNoRoom: a GPU has not enough free memory; nothing has changed then.
Result<ResumeReport> resume(const std::vector<int>& pids, const GpuOptions& options);

/// As `resume`, once process `other` has ended; until all have been seen to run for a while: a checkpoint that `other`
/// had begun may still be going on in its target, and take effect later. `parked`: a guard's socket (resume_guard.h),
/// -1: none.
Result<ResumeReport> resume_after(int other, int parked, const std::vector<int>& pids, const GpuOptions& options,
                                  const Cancel& cancel);

/// Waits until another process has ended, or does not exist.
Result<void> await_end(int pid, const Cancel& cancel);

}  // namespace ckpt::engine
