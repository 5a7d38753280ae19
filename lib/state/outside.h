// Processes outside the tree, and what they have in common with it that a restore would make a second time.
#pragma once

#include <vector>

#include "lib/proc/procfs.h"

namespace ckpt::capture {

struct Walk;

/// A process that is neither of the tree nor ckpt itself; of one that may not be looked at nothing.
struct OtherProcess {
  int pid = 0;
  std::vector<proc::OpenFd> fds;  ///< links alone
};

/// All of them, by pid. Read once for a walk, by all of its threads.
const std::vector<OtherProcess>& other_processes(Walk& walk);

/// Memory that no lasting name leads to (memfd_create, mmap(MAP_SHARED | MAP_ANONYMOUS), shared mappings of deleted
/// files), eventfds, timerfds and epoll sets that another process has, too: blockers, or notes where a copy is wanted.
/// After everything else, of a tree that runs: it takes milliseconds, where the tree has any of these.
void inventory_outside(Walk& walk);

}  // namespace ckpt::capture
