// Which pages an image takes, from where.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/pagemap.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// One block of the image (store::kBlockSize, aligned): pages to copy, pages that are as they were in the parent image.
struct BlockPlan {
  uint64_t address = 0;
  uint16_t data_mask = 0;
  uint16_t parent_mask = 0;
};

struct PagePlan {
  std::vector<BlockPlan> snapshot;  ///< private memory that a fork copies: may be read from a frozen fork, by address
  std::vector<BlockPlan> live;      ///< memory that a fork leaves out or shares: read it while the target stands still
  /// Both lists as one, by address.
  std::vector<BlockPlan> all() const;

  uint64_t pages_scanned = 0;       ///< populated pages looked at
  uint64_t pages_data = 0, pages_parent = 0, pages_zero = 0;  ///< pages_zero: the kernel's zero page, not copied
};

enum class Tracking {
  kNone,       ///< nothing tells what was written: every page is data
  kUse,        ///< unwritten pages are the parent's
  kArm,        ///< every page is data, and protected again in the same pass
  kUseAndArm,
};

/// The pages of a shared memory or a deleted file, by offset: those that its file says hold data (without a descriptor:
/// all of them). Every one is data; the store finds out which are as they were.
Result<std::vector<BlockPlan>> plan_content(int fd, uint64_t size);
uint64_t count_data(const std::vector<BlockPlan>& blocks);

/// Scans all private mappings of a stopped process. Fills `map.guards`. Blocks that hold pages of both sorts appear in both lists.
Result<PagePlan> plan_pages(const proc::Pagemap& pagemap, Tracking tracking, std::vector<store::MemoryMap>& maps);

}  // namespace ckpt::capture
