// Garbage collection: what nothing needs goes, beside pushes that are under way. README.md says why that is safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

struct CollectOptions {
  bool dry_run = false;
  uint64_t grace_s = 24 * 3600;  ///< a push on another host that said nothing for so long is dead
};

struct CollectReport {
  uint64_t removed_packs = 0, removed_bytes = 0;  ///< dry run: what would be, here and below
  uint64_t rewritten_packs = 0, moved_bytes = 0;  ///< packs with more that nothing needs than is worth keeping
  uint64_t waiting_packs = 0, waiting_bytes = 0;  ///< not needed, but a push may have seen them as they were
  uint64_t rescued_packs = 0;                     ///< something came to need them again
  std::vector<std::string> waits_for;             ///< those pushes, in words
  uint64_t dead_pushes = 0;
};

/// kCorrupt: nobody can say what a name needs; nothing is removed then. kBusy: another gc, or a repair, is under way.
Result<CollectReport> collect_garbage(Repository& repository, const CollectOptions& options, ProgressSink& progress);

/// Replaces the index objects that were loaded by one of all packs that are there and in use; packs of pushes that are
/// under way stay out of it.
Result<void> rewrite_index(Repository& repository, const std::vector<std::string>& without);

/// kBusy: somebody else is at work there who is of these kinds (Marker::kind), and is named. Where pushes are one of
/// them, so is one of which nothing can be read.
Result<void> check_alone(Repository& repository, const std::string& own, const std::vector<std::string>& kinds,
                         uint64_t grace_s = CollectOptions().grace_s);

}  // namespace ckpt::repository
