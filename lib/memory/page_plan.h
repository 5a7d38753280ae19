// Which pages an image takes, from where.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/proc/pagemap.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// One block of the image (store::kBlockSize, aligned): pages to copy, pages that are as they were before (in an
/// earlier iteration or the parent image).
struct BlockPlan {
  uint64_t address = 0;
  uint16_t data_mask = 0;
  uint16_t parent_mask = 0;
};

/// Blocks of a process's private memory, by address. A block of both sorts of mapping is in both lists, with other
/// pages.
struct PagePlan {
  std::vector<BlockPlan> snapshot;  ///< what a fork copies: may be read from a frozen fork, by address
  std::vector<BlockPlan> live;      ///< what a fork leaves out: read it while the target is frozen
  uint64_t pages_data = 0, pages_zero = 0;  ///< pages_zero: the kernel's zero page, not copied
};

/// What a scan of private mappings tells of. Regions by address; one may reach over neighbouring mappings.
enum class ScanFor {
  kPopulated,  ///< every populated page
  kProtected,  ///< the same, and they are protected in the same pass
  kWritten,    ///< those among them that were written since they were last protected, which must be known; protected
               ///< again
  kChanges,    ///< everything but pages that are present and not written, holes included
};
/// kChanges tells of pages of files (kFile) and of guards as kPopulated does. With a pool, large processes are scanned
/// by all of its threads. kUnsupported for the others on a kernel without PAGEMAP_SCAN.
Result<std::vector<proc::PageRegion>> scan_private(const proc::Pagemap& pagemap,
                                                   const std::vector<store::MemoryMap>& maps, ScanFor what,
                                                   WorkerPool* pool = nullptr);

/// The pages to copy of what `scan_private` found; fills `map.guards`.
PagePlan plan_data(const std::vector<proc::PageRegion>& found, ScanFor what, std::vector<store::MemoryMap>& maps);
/// The mappings that a fork does not copy (MADV_DONTFORK) or empties (MADV_WIPEONFORK).
std::vector<store::MemoryMap> left_out_by_fork(const std::vector<store::MemoryMap>& maps);
/// Every page of the mappings that `changes` (of ScanFor::kChanges) leaves out, as parent masks.
std::vector<BlockPlan> plan_unchanged(const std::vector<proc::PageRegion>& changes,
                                      const std::vector<store::MemoryMap>& maps);
/// Moves the pages of `blocks` that are not among `changes` from the data masks to the parent masks.
void keep_unchanged(const std::vector<proc::PageRegion>& changes, std::vector<BlockPlan>& blocks);
/// Adds to `changes` what of `more` is not in it. Both by address.
void unite(std::vector<proc::PageRegion>& changes, const std::vector<proc::PageRegion>& more);

/// The pages of the private huge pages among `maps`, by address: those that are there. Nothing tracks what is written
/// to them, so they are read while the process stands still.
Result<std::vector<BlockPlan>> plan_huge_pages(const proc::Pagemap& pagemap, const std::vector<store::MemoryMap>& maps);

/// The pages of a shared memory or a deleted file, by offset: those that its file says hold data (without a descriptor:
/// all of them). Every one is data; the store finds out which are as they were.
Result<std::vector<BlockPlan>> plan_content(int fd, uint64_t size);
uint64_t count_data(const std::vector<BlockPlan>& blocks);
uint64_t count_unchanged(const std::vector<BlockPlan>& blocks);

}  // namespace ckpt::capture
