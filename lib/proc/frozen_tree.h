// A process and all its descendants, stopped.
#pragma once

#include <map>
#include <vector>

#include "lib/proc/frozen_process.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

/// Holds every thread of every process of a tree in a ptrace stop, as FrozenProcess does for one.
class FrozenTree {
 public:
  /// Stops to a fixed point: parents before their children, then the children are listed again, until nothing new
  /// appears. Errors as FrozenProcess::freeze gives them; all of the tree runs on then. The timeout is for the whole
  /// tree.
  static Result<FrozenTree> freeze(int root, uint64_t timeout_us, const Cancel& cancel);

  /// The tree as it stands: each process after its parent, zombies included.
  const std::vector<TreeEntry>& entries() const { return entries_; }
  /// `pid` is not a zombie.
  const FrozenProcess& process(int pid) const { return processes_.at(pid); }
  FrozenProcess& process(int pid) { return processes_.at(pid); }
  /// CLOCK_MONOTONIC microseconds of the first stop.
  uint64_t frozen_at_us() const { return frozen_at_us_; }

  /// Lets all go on. Idempotent.
  void release() { processes_.clear(); }
  /// SIGKILL to all of them, while none runs; then waits until they are gone from this tracer's sight.
  Result<void> kill();

 private:
  FrozenTree() = default;
  std::vector<TreeEntry> entries_;
  std::map<int, FrozenProcess> processes_;
  uint64_t frozen_at_us_ = 0;
};

}  // namespace ckpt::proc
