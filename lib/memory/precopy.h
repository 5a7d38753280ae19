// Iterations of pre-copy: the memory of a process is copied while it goes on changing it, again and again what it wrote
// meanwhile, until what is left can be copied in a stop that nobody notices.
//
// Write tracking (userfaultfd, asynchronous) sees what the process writes through its page tables. It does not see what
// a device or the kernel writes to pages that were pinned before they were protected, as a read with O_DIRECT does that
// is on its way. So each iteration has a barrier between protecting and copying: the whole tree is frozen for a moment,
// which no thread does in the middle of such a call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lib/base/result.h"
#include "lib/memory/copy.h"
#include "lib/proc/pagemap.h"
#include "lib/store/image.h"

namespace ckpt::capture {

class Precopy {
 public:
  Precopy(store::ImageWriter& writer, const CopyOptions& options) : writer_(writer), options_(options) {}

  /// A running process whose writes `userfault` tracks, or is to track from the first iteration on. `tracked`: they are
  /// since the parent image, so that the first iteration copies no more than was written since.
  struct Seen {
    const std::vector<store::MemoryMap>& maps;
    uint64_t at_us;  ///< when collecting found these mappings
  };
  Result<void> add(int pid, int space, int userfault, bool tracked, const Seen& seen);
  bool empty() const { return processes_.empty(); }
  bool has(int pid) const { return find(pid) != nullptr; }

  struct Dirty {
    uint64_t bytes = 0;
    uint64_t scan_us = 0;  ///< of all threads
  };
  /// What a stop right now would have to copy of these processes.
  Result<Dirty> dirty();

  /// Copies what was written since the last iteration (in the first: everything, or what was written since the parent
  /// image). Mappings that are new since, or since they were collected, are tracked from here on. A process that has
  /// ended or has pinned pages is none of these any more.
  Result<store::CaptureIteration> iterate(const std::function<Result<void>()>& barrier);

  /// From within the barrier: devices may write to its memory still, which nothing tells of.
  void leave_out(int pid);

  /// Ranges of a process that an iteration failed to read, which the last copy must take whatever tracking says.
  const std::vector<proc::PageRegion>& missed(int pid) const;

 private:
  struct Process {
    bool left_out = false;  ///< it has ended, or what it wrote cannot be known
    int pid, space, userfault;
    bool protected_once;  ///< something is known of what it wrote
    proc::Pagemap pagemap;
    std::vector<store::MemoryMap> maps;  ///< its private mappings, as far as scans need to know
    uint64_t maps_at_us;  ///< since when no iteration has used them; 0: one has
    std::vector<proc::PageRegion> missed;
  };
  /// Side by side.
  template <class Scan>
  Result<void> each_process(Scan scan);
  Result<void> scan_dirty(Process& process, Dirty& out);
  Result<void> scan_next(Process& process, std::vector<BlockPlan>& blocks);
  void drop_left_out();
  const Process* find(int pid) const;

  store::ImageWriter& writer_;
  CopyOptions options_;
  std::vector<Process> processes_;
  unsigned iterations_ = 0;
};

/// Puts the private mappings among `maps` under tracking; one that refuses reads as written for ever.
void track_mappings(int userfault, const std::vector<store::MemoryMap>& maps);

}  // namespace ckpt::capture
