#include "lib/proc/frozen_process.h"

#include <algorithm>
#include <csignal>
#include <set>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

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
    auto seized = seize(tid);
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
      case StopKind::kTrap: return {};
      case StopKind::kGroupStop: group_stopped_ = true; return {};
      case StopKind::kEnded: return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
      // A signal that was being delivered: hand it on; our stop is still pending and comes before the next instruction.
      case StopKind::kSignal: CKPT_TRY(resume(tid, Resume::kRun, stop.signal)); break;
      case StopKind::kSyscall:
      case StopKind::kEvent: CKPT_TRY(resume(tid, Resume::kRun)); break;
    }
  }
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
    if (!stat) return fail(Code::kNotFound, "process " + std::to_string(pid), "has ended");
    return fail(Code::kUnsupported, describe_pid(pid), "its first thread has ended while others run: not supported");
  }
  std::sort(out.threads_.begin(), out.threads_.end());
  std::iter_swap(out.threads_.begin(), std::find(out.threads_.begin(), out.threads_.end(), pid));
  std::sort(out.threads_.begin() + 1, out.threads_.end());
  return out;
}

}  // namespace ckpt::proc
