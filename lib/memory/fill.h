// The pages of a process put into its memory, by ckpt's threads.
#pragma once

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/missing_pages.h"
#include "lib/state/mappings/plan.h"
#include "lib/state/shared_memory/restore.h"
#include "lib/state/tree/child.h"

namespace ckpt::restore {

/// The child's userfaultfd: made in it, taken out and closed there. `events` as for `begin_faults`.
struct Userfault {
  UniqueFd fd;
  proc::FaultAbilities abilities;
};
Result<Userfault> make_userfault(Child& child, bool events);
/// The mappings that are supplied as `what`.
Result<void> watch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault);
Result<void> unwatch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault);

/// The memory to fill, of a child that has it laid out. `held`: what it was born with, if it inherits any.
struct Filling {
  const store::ProcessImage& process;
  const MemoryPlan& plan;
  std::vector<size_t> blocks;  ///< of the image, by address
  const HeldMemory* held = nullptr;
  int pid = 0;
  int userfault = -1;          ///< watches what is supplied by copies
  uint64_t shift = 0;          ///< what its addresses are further up (modulo 2^64) in the memory that is filled
};
/// The blocks of mappings that are filled now.
std::vector<size_t> blocks_to_fill(const store::ImageReader& image, const store::ProcessImage& process,
                                   const MemoryPlan& plan);

/// Several workers read blocks and put them into the child, but for what is supplied on demand. Call between
/// `lay_out_memory` and `protect_memory`.
Result<FillTotals> fill_memory(const store::ImageReader& image, const Filling& filling, ProgressSink& progress,
                               const Cancel& cancel);

}  // namespace ckpt::restore
