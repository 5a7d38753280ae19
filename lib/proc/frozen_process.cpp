#include "lib/proc/frozen_process.h"

#include <algorithm>
#include <csignal>
#include <set>

#include "lib/base/clock.h"
#include "lib/proc/io_uring.h"
#include "lib/proc/procfs.h"
#include "lib/proc/seccomp.h"
#include "lib/proc/stopped_thread.h"

namespace ckpt::proc {

FrozenProcess::FrozenProcess(FrozenProcess&& other) noexcept
    : pid_(other.pid_), threads_(std::move(other.threads_)), stopped_(other.stopped_),
      stopped_by_(other.stopped_by_), adopted_(other.adopted_), frozen_at_us_(other.frozen_at_us_) {
  other.threads_.clear();
}

FrozenProcess::~FrozenProcess() { release(); }

FrozenProcess FrozenProcess::adopt(int pid, std::vector<int> threads, int stopped_by) {
  FrozenProcess out(pid);
  out.stopped_ = threads.size();
  out.threads_ = std::move(threads);
  out.stopped_by_ = stopped_by, out.adopted_ = true;
  return out;
}

void FrozenProcess::release() {
  if (adopted_) return threads_.clear();
  const auto not_stopped = threads_.begin() + static_cast<ptrdiff_t>(std::min(stopped_, threads_.size()));
  std::stable_partition(threads_.begin(), not_stopped, [this](int tid) { return tid == pid_; });
  for (auto it = threads_.begin(); it != not_stopped; ++it) (void)detach(*it);
  // Of a freeze that failed: these were told to stop, and only a stopped thread can be let go. A signal may have come
  // first.
  const uint64_t until = monotonic_us() + 1'000'000;
  for (auto it = not_stopped; it != threads_.end(); ++it) {
    const uint64_t now = monotonic_us();
    auto stop = wait_stop(*it, now < until ? until - now : 1);
    (void)detach(*it, stop && stop->kind == StopKind::kSignal ? stop->signal : 0);
  }
  threads_.clear();
}

Result<void> FrozenProcess::kill() {
  if (::kill(pid_, SIGKILL) != 0) return sys_error(describe_pid(pid_), "cannot end");
  // Each thread reports its end to the tracer; the leader last. Not waiting would leave zombies that block the pid.
  constexpr uint64_t kLimitUs = 60'000'000;
  for (auto it = threads_.rbegin(); it != threads_.rend(); ++it) {
    for (;;) {
      auto stop = wait_stop(*it, kLimitUs);
      if (!stop && stop.error().code == Code::kBusy)
        return fail(Code::kBusy, describe_pid(pid_), "was told to end (SIGKILL), and has not done so for a minute");
      if (!stop || stop->kind == StopKind::kEnded) break;
      (void)resume(*it, Resume::kRun);
    }
  }
  threads_.clear();
  return {};
}

Result<bool> FrozenProcess::seize_new_threads() {
  CKPT_TRY_ASSIGN(std::vector<int> tids, read_threads(pid_));
  // The first thread last, and let go first: while it is traced a signal that the process ignores is not dropped as it
  // is sent, and wakes a thread that we do not hold yet, or no longer, from a call that then fails with EINTR.
  std::stable_partition(tids.begin(), tids.end(), [this](int tid) { return tid != pid_; });
  std::set<int> known(threads_.begin(), threads_.end());
  // Before the first one is stopped: it costs some microseconds for each.
  std::erase_if(tids, [&](int tid) { return known.count(tid) != 0 || (tid != pid_ && is_io_worker(pid_, tid)); });
  bool found = false;
  for (int tid : tids) {
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
      case StopKind::kTrap: return settle_stopped_thread(pid_, tid);
      case StopKind::kGroupStop: stopped_by_ = stop.signal; return settle_stopped_thread(pid_, tid);
      case StopKind::kEnded: return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
      // A signal that was being delivered: hand it on. Any stop takes the request for ours away (ptrace_stop in
      // kernel/signal.c), so it is made again; the thread then stops before its next instruction.
      case StopKind::kSignal:
        CKPT_TRY(settle_before_signal(pid_, tid, stop.signal));
        CKPT_TRY(interrupt(tid));
        CKPT_TRY(resume(tid, Resume::kRun, stop.signal));
        break;
      case StopKind::kSyscall:
      case StopKind::kEvent:
        CKPT_TRY(interrupt(tid));
        CKPT_TRY(resume(tid, Resume::kRun));
        break;
    }
  }
}

Result<void> FrozenProcess::stop_all(uint64_t timeout_us, const Cancel& cancel) {
  for (;;) {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(bool found, seize_new_threads());
    if (!found) break;
    while (stopped_ < threads_.size()) {
      int tid = threads_[stopped_];
      auto stopped = await_stop(tid, timeout_us);
      if (stopped) {
        ++stopped_;
      } else if (stopped.error().code == Code::kNotFound && tid != pid_) {
        threads_.erase(threads_.begin() + static_cast<long>(stopped_));
      } else {
        Error error = std::move(stopped).error();
        if (tid == pid_ && error.code == Code::kNotFound) error.subject = "process " + std::to_string(pid_);
        return error;
      }
    }
  }
  auto leader = std::find(threads_.begin(), threads_.end(), pid_);
  if (leader == threads_.end()) {
    auto stat = read_stat(pid_);
    if (!stat || (threads_.empty() && stat->is_ending()))
      return fail(Code::kNotFound, "process " + std::to_string(pid_), "has ended");
    return fail(Code::kUnsupported, describe_pid(pid_), "its first thread has ended while others run: not supported");
  }
  std::iter_swap(threads_.begin(), leader);
  std::sort(threads_.begin() + 1, threads_.end());
  return {};
}

Result<FrozenProcess> FrozenProcess::freeze(int pid, uint64_t timeout_us, const Cancel& cancel) {
  FrozenProcess out(pid);
  CKPT_TRY(out.stop_all(timeout_us, cancel));
  return out;
}

Result<void> FrozenProcess::stop_new_threads(uint64_t timeout_us) { return stop_all(timeout_us, Cancel()); }

}  // namespace ckpt::proc
