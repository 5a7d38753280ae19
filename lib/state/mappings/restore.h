// The address space: emptied, laid out as it was, protected once it is filled.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/tree/held_memory.h"
#include "lib/state/files/restore.h"
#include "lib/state/mappings/plan.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// What the restorer area must keep clear of: the mappings of every process, sorted, and as few ranges as they make.
std::vector<Range> ranges_of(const store::TreeImage& tree);

/// Unmaps everything that the child was born with, ckpt's own or what it holds (Child::held), but for what it inherits;
/// makes every other mapping at its old address (those that will be written writable for now), and moves vdso and vvar
/// to their old places.
Result<void> lay_out_memory(const store::TreeImage& tree, const store::ProcessImage& process, const MemoryPlan& plan,
                            const OpenedFiles& files, Child& child);

/// What `pages_to_drop` says, once the memory is laid out.
Result<void> drop_pages(const std::vector<Range>& pages, Child& child);

/// Final protections, guards, locks, seals. For the locks the limit of locked memory is as high as it may be, until
/// set_limits.
void protect_memory(const store::ProcessImage& process, const MemoryPlan& plan, RestorerArea& area,
                    SyscallBatch& batch);
/// mlockall(MCL_FUTURE), once nothing more is mapped, and before set_limits.
void lock_future_memory(const store::ProcessImage& process, SyscallBatch& batch);
/// Once such a batch has run: says what is not locked, and why.
void tell_unlocked(const SyscallBatch& batch, const Child& child, ProgressSink& progress);

}  // namespace ckpt::restore
