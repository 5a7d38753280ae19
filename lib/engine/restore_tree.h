// Processes made from an image: a whole tree, with all threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/task_fate.h"
#include "lib/state/cgroups/options.h"
#include "lib/state/external/options.h"
#include "lib/store/image.h"

namespace ckpt::restore {

class CommonMemory;

struct Options {
  state::ExternalOptions external;
  bool parent_stays = false;  ///< ckpt will wait for the process; else it must not notice ckpt's end
  bool sibling = false;       ///< a child of ckpt's parent, not of ckpt
  state::CgroupOptions cgroups;
  bool lazy = false;  ///< memory comes in once the processes run, by a process that outlives ckpt (see daemon.h)
  bool drop_labels = false;                ///< security labels may be others than they were
  bool may_change_labels = true;           ///< the image is the caller's own, or trusted
  std::string label_profile;               ///< in place of security labels that there were (see labels/change.h)
  std::vector<std::string> allow_changed;  ///< files that may be others than they were (see files.h)
  bool force_files = false;   ///< the image's content of a file is put back over a newer one, too
  bool dry_run = false;       ///< `prepare` alone: nothing is made, changed or locked, not for a moment either
  const CommonMemory* common = nullptr;  ///< what this restore shares with others (lib/memory/common.h); null: none
  std::filesystem::path lazy_log;  ///< what that one has to say; empty: see log.h
  TaskFate* lazy_fate = nullptr;  ///< what becomes of that one; null: nobody asks
};

struct Totals {
  int pid = 0;
  uint64_t processes = 0, threads = 0, mappings = 0, descriptors = 0, pages = 0, bytes = 0;
  uint64_t bytes_on_demand = 0;  ///< of mappings that are supplied later
  std::vector<std::pair<std::string, uint64_t>> phases_us;  ///< in order: check, create, map, fill, state
};

/// A rebuild in two steps: `prepare` does all that can refuse and creates nothing but descriptors of ckpt's own;
/// `build` makes the processes, which are stopped until `release`. Use it from one thread. Dropping it at any time
/// before leaves nothing.
class Rebuild {
 public:
  virtual ~Rebuild() = default;
  /// The image must outlive the result. Its pages are loaded, but for `lazy`: there `build` does that, sparsely, and
  /// leaves the rest to the lazy-pages daemon. One Error with every reason as a cause: kBusy (a number is taken, and by
  /// whom), kNotFound (a file), kMismatch (a file that changed), kCorrupt (a damaged image), kUnsupported (CPU,
  /// kernel), kPermission, kUsage (an external resource).
  static Result<std::unique_ptr<Rebuild>> prepare(store::ImageReader& image, const Options& options,
                                                  ProgressSink& progress);
  virtual Result<void> build(const Cancel& cancel) = 0;
  /// The last step that may often fail, and that changes files: once, after `build` and before all that follows. The
  /// lazy-pages daemon serves, and the files whose content the image has have it. How many of them were changed.
  virtual Result<size_t> put_back_files(const Cancel& cancel) = 0;
  /// The packet filter of the dump is removed; `settle` does that, too.
  virtual Result<void> let_packets_pass() = 0;
  /// What is left to be put back once the processes stand as they were: timers that run, connections. `release` begins
  /// with it; once is enough.
  virtual Result<void> settle() = 0;
  /// The processes that were built, zombies left out; each thread stands in a ptrace stop of the calling thread.
  struct Built {
    int pid = 0;
    std::vector<int> threads;  ///< the leader first
  };
  virtual std::vector<Built> built() const = 0;
  /// The processes run. The first is a child of ckpt, and no longer bound to it.
  virtual Result<void> release() = 0;
  virtual const Totals& totals() const = 0;
};

}  // namespace ckpt::restore
