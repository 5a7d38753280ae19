#include "lib/capture/snapshot.h"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/procfs.h"

namespace ckpt::capture {

Result<Snapshot> Snapshot::take(proc::BorrowedThread& thread, int target, const proc::Gadgets& gadgets) {
  CKPT_TRY_ASSIGN(int pid, thread.fork_frozen());
  return Snapshot(target, pid, gadgets);
}

namespace {

Result<uint64_t> reap_inside(int target, int child, proc::Gadgets gadgets) {
  constexpr uint64_t kFreezeTimeoutUs = 10'000'000;
  CKPT_TRY_ASSIGN(proc::FrozenProcess frozen, proc::FrozenProcess::freeze_leader(target, kFreezeTimeoutUs));
  if (!proc::still_hold(target, gadgets)) {
    CKPT_TRY_ASSIGN(std::vector<proc::Vma> maps, proc::read_maps(target, false));
    CKPT_TRY_ASSIGN(gadgets, proc::find_gadgets(target, maps));
  }
  CKPT_TRY_ASSIGN(proc::Scratch scratch, proc::Scratch::map(target, target, gadgets));
  {
    CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(scratch, target));
    CKPT_TRY(thread.call(SYS_wait4, {static_cast<uint64_t>(child), 0, static_cast<uint64_t>(__WALL) | WNOHANG, 0}));
    CKPT_TRY(thread.finish());
  }
  CKPT_TRY(scratch.unmap());
  frozen.release();
  const uint64_t now = monotonic_us();
  trace::interval(trace::Row::kTarget, "frozen to reap the snapshot", frozen.frozen_at_us(), now);
  return now - frozen.frozen_at_us();
}

}  // namespace

Result<uint64_t> Snapshot::finish() {
  int child = std::exchange(pid_, 0);
  if (child == 0) return uint64_t{0};
  ::kill(child, SIGKILL);
  for (auto stop = proc::wait_stop(child); stop && stop->kind != proc::StopKind::kEnded; stop = proc::wait_stop(child)) {
    (void)proc::resume(child, proc::Resume::kRun);
  }
  auto stood = reap_inside(target_, child, gadgets_);
  // A target that has ended meanwhile leaves its children to others.
  if (!stood && stood.error().code == Code::kNotFound) return uint64_t{0};
  return stood;
}

}  // namespace ckpt::capture
