// All threads of one process, stopped.
#pragma once

#include <map>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// Holds threads of a process in a ptrace stop. Owned by the thread that made it. `release` is the good end; the
/// destructor releases too, and so does the kernel when ckpt is killed: the target runs on in every case.
///
/// A stop breaks off some calls with EINTR though no signal is delivered (epoll_wait and its kin, signal(7)); each is
/// set up to run again at once, so that the target does not notice.
class FrozenProcess {
 public:
  /// Stops to a fixed point: seize and interrupt every thread, list again, until nothing new appears. A signal that was
  /// on its way is delivered first. kNotFound, kPermission, kBusy (traced by somebody else, or did not stop in
  /// `timeout_us`).
  static Result<FrozenProcess> freeze(int pid, uint64_t timeout_us, const Cancel& cancel);
  /// Threads that this thread of ckpt traces already and that are all stopped, the leader first. They stay so: nothing
  /// here lets them go. `stopped_by`: the signal of their group-stop, 0 where they are in none.
  static FrozenProcess adopt(int pid, std::vector<int> threads, int stopped_by);
  FrozenProcess(FrozenProcess&& other) noexcept;
  FrozenProcess& operator=(FrozenProcess&&) = delete;
  ~FrozenProcess();

  int pid() const { return pid_; }
  /// Sorted; the leader (tid == pid) first.
  const std::vector<int>& threads() const { return threads_; }
  /// The signal by which the whole process was stopped (SIGSTOP and its kin) when it was frozen, and goes on being so
  /// afterwards; 0: it was not.
  int stopped_by() const { return stopped_by_; }
  /// CLOCK_MONOTONIC microseconds of the first stop.
  uint64_t frozen_at_us() const { return frozen_at_us_; }

  /// Stops threads that have come to be since, where some of the process ran for a moment (run_alone.h).
  Result<void> stop_new_threads(uint64_t timeout_us);
  /// Lets all threads go on. Idempotent.
  void release();
  /// SIGKILL, then waits until the process is gone from this tracer's sight. kBusy: it still is not after a minute.
  Result<void> kill();

 private:
  explicit FrozenProcess(int pid) : pid_(pid) {}
  Result<bool> seize_new_threads();
  Result<void> stop_all(uint64_t timeout_us, const Cancel& cancel);
  Result<void> await_stop(int tid, uint64_t timeout_us);

  int pid_;
  std::vector<int> threads_;  ///< seized, in the order of seizing until `freeze` sorts them
  size_t stopped_ = 0;        ///< the first `stopped_` of them have reported their stop
  int stopped_by_ = 0;
  bool adopted_ = false;
  uint64_t frozen_at_us_ = 0;
};

}  // namespace ckpt::proc
