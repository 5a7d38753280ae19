// The number that one process has for another, which may be in a pid namespace of its own.
#pragma once

#include <cstddef>

#include "lib/proc/procfs.h"

namespace ckpt::proc {

/// What `viewer` calls process `pid`, both as ckpt numbers them; `pid` where that cannot be told.
inline int number_seen_by(int viewer, int pid) {
  auto own = read_status(viewer, viewer), other = read_status(pid, pid);
  const size_t level = own ? own->ns_pids.size() : 0;
  return level == 0 || !other || other->ns_pids.size() < level ? pid : other->ns_pids[level - 1];
}

}  // namespace ckpt::proc
