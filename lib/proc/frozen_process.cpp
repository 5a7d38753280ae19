#include "lib/proc/frozen_process.h"

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"
#include "lib/proc/seccomp.h"

namespace ckpt::proc {

namespace {

/// Calls that fail with EINTR after a mere stop, without any handler having run (signal(7), "Interruption of system calls
/// and library functions by stop signals"), and the newer ones of their families.
bool breaks_off_on_stop(uint64_t number) {
  switch (number) {
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_pwait2: case SYS_semop: case SYS_semtimedop:
    case SYS_rt_sigtimedwait: case SYS_io_getevents: case SYS_io_pgetevents: return true;
    default: return false;
  }
}

/// Sets a call that our stop broke off up to run again; one that a waiting signal will break off anyway is left alone.
Result<void> mend_broken_call(int pid, int tid) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, get_registers(tid));
  if (static_cast<long>(regs.rax) != -EINTR || !breaks_off_on_stop(regs.orig_rax)) return {};
  CKPT_TRY_ASSIGN(Status status, read_status(pid, tid));
  if (((status.pending_private | status.pending_shared) & ~status.blocked) != 0) return {};
  regs.rax = regs.orig_rax;
  regs.rip -= 2;
  regs.orig_rax = ~0ull;
  return set_registers(tid, regs);
}

}  // namespace

FrozenProcess::FrozenProcess(FrozenProcess&& other) noexcept
    : pid_(other.pid_), threads_(std::move(other.threads_)), stopped_(other.stopped_),
      group_stopped_(other.group_stopped_), frozen_at_us_(other.frozen_at_us_) {
  other.threads_.clear();
}

FrozenProcess::~FrozenProcess() { release(); }

void FrozenProcess::release() {
  for (int tid : threads_) (void)detach(tid);
  threads_.clear();
}

Result<void> FrozenProcess::kill() {
  if (::kill(pid_, SIGKILL) != 0) return sys_error(describe_pid(pid_), "cannot end");
  // Each thread reports its end to the tracer; the leader last. Not waiting would leave zombies that block the pid.
  for (auto it = threads_.rbegin(); it != threads_.rend(); ++it) {
    for (;;) {
      auto stop = wait_stop(*it);
      if (!stop || stop->kind == StopKind::kEnded) break;
      (void)resume(*it, Resume::kRun);
    }
  }
  threads_.clear();
  return {};
}

Result<bool> FrozenProcess::seize_new_threads() {
  CKPT_TRY_ASSIGN(std::vector<int> tids, read_threads(pid_));
  std::set<int> known(threads_.begin(), threads_.end());
  bool found = false;
  for (int tid : tids) {
    if (known.count(tid) != 0) continue;
    auto seized = seize(tid, suspend_seccomp_option());
    if (!seized) {
      // A thread may end between the listing and here; the process itself may not.
      if (seized.error().code == Code::kNotFound && tid != pid_) continue;
      auto stat = read_thread_stat(pid_, tid);
      if (stat && (stat->state == 'Z' || stat->state == 'X')) continue;
      return std::move(seized).error();
    }
    threads_.push_back(tid);
    if (frozen_at_us_ == 0) frozen_at_us_ = monotonic_us();
    if (auto asked = interrupt(tid); !asked && asked.error().code != Code::kNotFound) return std::move(asked).error();
    found = true;
  }
  return found;
}

Result<void> FrozenProcess::await_stop(int tid, uint64_t timeout_us) {
  for (;;) {
    CKPT_TRY_ASSIGN(Stop stop, wait_stop(tid, timeout_us));
    switch (stop.kind) {
      case StopKind::kTrap: return mend_broken_call(pid_, tid);
      case StopKind::kGroupStop: group_stopped_ = true; return mend_broken_call(pid_, tid);
      case StopKind::kEnded: return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
      // A signal that was being delivered: hand it on; our stop is still pending and comes before the next instruction.
      case StopKind::kSignal: CKPT_TRY(resume(tid, Resume::kRun, stop.signal)); break;
      case StopKind::kSyscall:
      case StopKind::kEvent: CKPT_TRY(resume(tid, Resume::kRun)); break;
    }
  }
}

Result<FrozenProcess> FrozenProcess::freeze_leader(int pid, uint64_t timeout_us) {
  FrozenProcess out(pid);
  CKPT_TRY(seize(pid, suspend_seccomp_option()));
  out.threads_.push_back(pid);
  out.frozen_at_us_ = monotonic_us();
  CKPT_TRY(interrupt(pid));
  CKPT_TRY(out.await_stop(pid, timeout_us));
  return out;
}

Result<FrozenProcess> FrozenProcess::freeze(int pid, uint64_t timeout_us, const Cancel& cancel) {
  FrozenProcess out(pid);
  for (;;) {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(bool found, out.seize_new_threads());
    if (!found) break;
    while (out.stopped_ < out.threads_.size()) {
      int tid = out.threads_[out.stopped_];
      auto stopped = out.await_stop(tid, timeout_us);
      if (stopped) {
        ++out.stopped_;
      } else if (stopped.error().code == Code::kNotFound && tid != pid) {
        out.threads_.erase(out.threads_.begin() + static_cast<long>(out.stopped_));
      } else {
        Error error = std::move(stopped).error();
        if (tid == pid && error.code == Code::kNotFound) error.subject = "process " + std::to_string(pid);
        return error;
      }
    }
  }
  if (out.threads_.empty() || std::find(out.threads_.begin(), out.threads_.end(), pid) == out.threads_.end()) {
    auto stat = read_stat(pid);
    if (!stat || (out.threads_.empty() && stat->is_ending())) return fail(Code::kNotFound, "process " + std::to_string(pid), "has ended");
    return fail(Code::kUnsupported, describe_pid(pid), "its first thread has ended while others run: not supported");
  }
  std::sort(out.threads_.begin(), out.threads_.end());
  std::iter_swap(out.threads_.begin(), std::find(out.threads_.begin(), out.threads_.end(), pid));
  std::sort(out.threads_.begin() + 1, out.threads_.end());
  return out;
}

}  // namespace ckpt::proc
