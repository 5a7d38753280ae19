// What a ckpt that was killed together with all its helpers has left in a target: its snapshot, dead but not reaped,
// and the mapping from which it made system calls there.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/procfs.h"

namespace ckpt::capture {

struct Leftovers {
  std::vector<int> snapshots;
  std::vector<uint64_t> areas;  ///< addresses
  bool empty() const { return snapshots.empty() && areas.empty(); }
};

/// A child that sends no signal and was killed before it ever ran, or ended by ckpt's own code: nobody but ckpt makes
/// such.
bool is_dead_snapshot(const proc::Stat& stat);
/// Of process `pid`; `maps` may be a moment old. While it holds the capture lock of the process, or what it finds may
/// be in use.
Leftovers find_leftovers(int pid, const std::vector<proc::Vma>& maps);
/// Stops the process for a moment and takes them away. kBusy: a thread has not yet left the mapping.
Result<void> clear_leftovers(int pid, Leftovers left);

}  // namespace ckpt::capture
