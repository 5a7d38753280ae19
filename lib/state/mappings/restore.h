// The address space: emptied, laid out as it was, protected once it is filled.
#pragma once

#include <cstdint>
#include <vector>

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

/// Final protections, guards, locks, seals.
void protect_memory(const store::ProcessImage& process, const MemoryPlan& plan, SyscallBatch& batch);

}  // namespace ckpt::restore
