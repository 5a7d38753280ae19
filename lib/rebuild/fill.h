// The pages of a process put into its memory, by ckpt's threads.
#pragma once

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/missing_pages.h"
#include "lib/rebuild/child.h"
#include "lib/rebuild/memory_plan.h"
#include "lib/rebuild/shared_memory.h"

namespace ckpt::rebuild {

/// The child's userfaultfd: made in it, taken out and closed there. `events` as for `begin_faults`.
struct Userfault {
  UniqueFd fd;
  proc::FaultAbilities abilities;
};
Result<Userfault> make_userfault(Child& child, bool events);
/// The mappings that are supplied as `what`.
Result<void> watch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault);
Result<void> unwatch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault);

/// Several workers read blocks and put them into the child, but for what is supplied on demand. Call between
/// `lay_out_memory` and `protect_memory`. `userfault`: watches what is supplied by copies.
Result<FillTotals> fill_memory(const store::ImageReader& image, const store::ProcessImage& process, const MemoryPlan& plan, int pid,
                               int userfault, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::rebuild
