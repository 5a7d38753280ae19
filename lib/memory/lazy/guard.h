// The guardian of a lazy-pages daemon: when the last descriptor of a userfaultfd is closed the kernel gives the process
// zeros for every page that is still missing. So a second process shares the daemon's descriptor table (what the kernel
// puts there for a forked child is in both at once), and sees to it that none of those pages is ever read should the
// daemon be killed.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/memory/lazy/log.h"

namespace ckpt::restore {

/// Memory that daemon and guardian share.
struct LazyPagesState {
  volatile int finished = 0;  ///< nothing is missing any more
  volatile int poison = 0;    ///< the kernel can poison pages; else whoever asks for one is killed
};

/// A new guardian of the calling process, as a child that raises no signal at its end. Its pidfd. Safe while other
/// threads run: the child uses nothing but system calls.
Result<UniqueFd> start_guardian(const LazyPagesState& state, const LazyPagesLog& log);

}  // namespace ckpt::restore
