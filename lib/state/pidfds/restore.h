// Pidfds opened again.
#pragma once

#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/tree/child.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// A pidfd of a process that has ended and been waited for (ProcessHandle::pid -1). In ckpt.
Result<UniqueFd> make_dead_pidfd(int flags);

/// Any other pidfd is opened by its owner once every process of the tree exists, and before those that have ended are
/// waited for. A script cannot use the result of its own calls, so it takes two: run the first, then build the second.
struct PidfdPlace {
  int pid = 0;
  int flags = 0;                          ///< of the descriptor: O_NONBLOCK; O_EXCL: of a thread
  std::vector<std::pair<int, bool>> fds;  ///< number, close-on-exec
};
/// Adds one call for each.
void open_pidfds(const std::vector<PidfdPlace>& places, SyscallBatch& batch);
/// `opened` ran; its calls of `open_pidfds` begin with `first`. From `spare` on as many numbers as there are places
/// must be free in the process.
void place_pidfds(const std::vector<PidfdPlace>& places, const SyscallBatch& opened, size_t first, int spare,
                  SyscallBatch& batch);

/// Those of one process, once every process is there, and before epoll sets watch them. `spare`: numbers from there on
/// are free.
Result<void> open_pidfds(const store::TreeImage& tree, int process, int spare, Child& child);

}  // namespace ckpt::restore
