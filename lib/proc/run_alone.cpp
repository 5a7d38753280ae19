#include "lib/proc/run_alone.h"

#include <future>

#include "lib/base/threads.h"
#include "lib/proc/ptrace.h"
#include "lib/proc/seccomp.h"
#include "lib/proc/stopped_thread.h"

namespace ckpt::proc {

namespace {

enum class Stopping { kAsked, kNot };

/// The next stop that is not a mere passage, within `timeout_us` (0: however long it takes). Any stop takes a request
/// for one away.
Result<void> await_trap(int tid, uint64_t timeout_us, Stopping stopping) {
  for (;;) {
    CKPT_TRY_ASSIGN(Stop stop, wait_stop(tid, timeout_us));
    switch (stop.kind) {
      case StopKind::kTrap:
      case StopKind::kGroupStop: return {};
      case StopKind::kEnded: return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
      case StopKind::kSignal:
      case StopKind::kSyscall:
      case StopKind::kEvent: break;
    }
    if (stopping == Stopping::kAsked) CKPT_TRY(interrupt(tid));
    CKPT_TRY(resume(tid, Resume::kRun, stop.kind == StopKind::kSignal ? stop.signal : 0));
  }
}

/// A group-stop that comes while the thread shall run is passed over: the process is to be frozen anyway.
Result<void> run_until(int tid, std::future<Result<void>>& done) {
  while (done.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout) {
    auto stopped = await_trap(tid, 1, Stopping::kNot);
    if (stopped) CKPT_TRY(resume(tid, Resume::kRun));
    else if (stopped.error().code != Code::kBusy) return stopped;
  }
  return {};
}

}  // namespace

Result<void> run_alone(int pid, int tid, const std::function<Result<void>()>& work) {
  CKPT_TRY_ASSIGN(const uint64_t mask, get_signal_mask(tid));
  CKPT_TRY(set_signal_mask(tid, ~uint64_t{0}));
  CKPT_TRY(settle_stopped_thread(pid, tid));  // for a waiting signal it was left alone, and that does not come now
  CKPT_TRY(set_options(tid, 0));
  CKPT_TRY(resume(tid, Resume::kRun));
  auto done = in_background(work);
  const bool started = done.wait_for(std::chrono::seconds(0)) != std::future_status::deferred;
  Result<void> ran = started ? run_until(tid, done) : Result<void>();
  Result<void> worked =
      started ? done.get()
              : Result<void>(no_thread(std::to_string(pid)));  // a target that has ended makes the work fail, too
  CKPT_TRY(ran);
  CKPT_TRY(interrupt(tid));
  CKPT_TRY(await_trap(tid, 0, Stopping::kAsked));
  CKPT_TRY(set_options(tid, suspend_seccomp_option()));
  CKPT_TRY(set_signal_mask(tid, mask));
  CKPT_TRY(settle_stopped_thread(pid, tid));
  return worked;
}

}  // namespace ckpt::proc
