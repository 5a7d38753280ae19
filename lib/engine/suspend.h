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
  std::vector<std::string> notes;  ///< what a person should know of them
  store::GpuState state;   ///< what became free
  uint64_t lock_us = 0, checkpoint_us = 0;
};
/// The processes with all their descendants, together: all are locked before the first is checkpointed. kNotFound: no
/// such process, or one without GPU state; kBusy: work was not done in time; kNoRoom: host memory has not the room for
/// what their GPUs hold. Every failure leaves them running as they were, or is kTargetAltered.
Result<SuspendReport> suspend(const std::vector<int>& pids, const GpuOptions& options, const Cancel& cancel);

struct LockReport {
  std::vector<int> pids;
  uint64_t took_us = 0;
};
/// Submitted work is waited for, and every further GPU call waits, until `unlock_gpus`, or `resume`, which does it,
/// too.
Result<LockReport> lock_gpus(const std::vector<int>& pids, const GpuOptions& options, const Cancel& cancel);
/// kUsage: one is suspended. What is not locked stays as it is.
Result<LockReport> unlock_gpus(const std::vector<int>& pids, const GpuOptions& options);

struct ResumeReport {
  std::vector<int> pids;  ///< those that were brought back
  uint64_t restore_us = 0;
};
/// The processes with all their descendants: what is suspended gets its GPU state back, what is merely locked is
/// unlocked, what runs stays as it is. kNoRoom: a GPU has not enough free memory; nothing has changed then.
Result<ResumeReport> resume(const std::vector<int>& pids, const GpuOptions& options);

/// As `resume`, once process `other` has ended; until all have been seen to run for a while: a checkpoint that `other`
/// had begun may still be going on in its target, and take effect later. `offloaded`: a guard's socket
/// (resume_guard.h), -1: none.
Result<ResumeReport> resume_after(int other, int offloaded, const std::vector<int>& pids, const GpuOptions& options,
                                  const Cancel& cancel);

/// What a suspended process needs to be resumed; none where nobody wrote it down, or where it was suspended together
/// with another one, which has it all.
std::vector<store::GpuUse> needed_to_resume(int pid);

/// Waits until another process has ended, or does not exist.
Result<void> await_end(int pid, const Cancel& cancel);

}  // namespace ckpt::engine
