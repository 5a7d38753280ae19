// A snapshot of a process's private memory: a fork borrowed from it, frozen before its first instruction.
#pragma once

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"

namespace ckpt::capture {

/// Every page of it is as it was when the fork was made, copy-on-write, while the process goes on. Ends with `finish`,
/// or in the destructor; should ckpt be killed the kernel ends it (PTRACE_O_EXITKILL).
class Snapshot {
 public:
  static Result<Snapshot> take(proc::BorrowedThread& thread, int target, const proc::Gadgets& gadgets);
  Snapshot(Snapshot&& other) noexcept
      : target_(other.target_), pid_(std::exchange(other.pid_, 0)), gadgets_(other.gadgets_) {}
  Snapshot& operator=(Snapshot&&) = delete;
  ~Snapshot() { (void)finish(); }

  int pid() const { return pid_; }
  /// Ends the fork. It is a child of the target, which knows nothing of it and would keep it as a zombie: so the
  /// target's first thread is borrowed once more, for a wait4. That stop takes some 100 us; returns its length.
  Result<uint64_t> finish();

 private:
  Snapshot(int target, int pid, const proc::Gadgets& gadgets) : target_(target), pid_(pid), gadgets_(gadgets) {}
  int target_, pid_;
  proc::Gadgets gadgets_;  ///< of the target
};

}  // namespace ckpt::capture
