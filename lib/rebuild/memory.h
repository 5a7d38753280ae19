// The address space: emptied, laid out as it was, filled from outside, protected.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/rebuild/child.h"
#include "lib/rebuild/files.h"
#include "lib/rebuild/shared_memory.h"
#include "lib/store/image.h"

namespace ckpt::rebuild {

/// What the scratch must keep clear of: the mappings of every process, sorted, and as few ranges as they make.
std::vector<Range> ranges_of(const store::TreeImage& tree);

/// Unmaps everything of ckpt's, makes every mapping at its old address (those that will be filled writable for now),
/// and moves vdso and vvar to their old places.
Result<void> lay_out_memory(const store::ImageReader& image, const store::ProcessImage& process, const OpenedFiles& files,
                            Child& child);

/// Several workers read blocks and write them into the child. Call between `lay_out_memory` and `protect_memory`.
Result<FillTotals> fill_memory(const store::ImageReader& image, const store::ProcessImage& process, int pid,
                               ProgressSink& progress, const Cancel& cancel);

/// Final protections, guards, locks, seals.
void protect_memory(const store::ImageReader& image, const store::ProcessImage& process, Script& script);

}  // namespace ckpt::rebuild
