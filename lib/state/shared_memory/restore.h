// Shared memory: made in ckpt, filled there, mapped by the processes through inherited descriptors.
#pragma once

#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/reasons.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Inherited descriptors of one object; the second for mappings that may never be written.
struct SharedMemoryFds {
  int writable = -1, read_only = -1;
};

/// Parallel to TreeImage::shared_memory. What cannot be made is a reason against.
std::vector<SharedMemoryFds> make_shared_memory(const store::TreeImage& tree, Inherited& inherited, Reasons& reasons);

/// Seals that must be there before the processes map the object, and after it.
Result<void> seal_before_mapping(const store::TreeImage& tree, const std::vector<SharedMemoryFds>& fds);
Result<void> seal_after_mapping(const store::TreeImage& tree, const std::vector<SharedMemoryFds>& fds);

struct FillTotals {
  uint64_t pages = 0, bytes = 0;
};
/// Writes the pages of a memory space into a file by offset; holes stay holes. Several workers. `huge_page`: bytes of a
/// page, of a file of hugetlbfs. kNoRoom.
Result<FillTotals> fill_file(const store::ImageReader& image, int space, uint64_t size, int fd, ProgressSink& progress,
                             const Cancel& cancel, uint64_t huge_page = 0);

}  // namespace ckpt::restore
