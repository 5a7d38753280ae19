#include "lib/capture/page_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/io.h"
#include "lib/store/image.h"

namespace ckpt::capture {

namespace {

using proc::PageRegion;
namespace page = proc::page;

/// Marks the pages of [start, end) in one of a block's masks; `blocks` grows by address.
void mark(std::vector<BlockPlan>& blocks, uint64_t start, uint64_t end, uint16_t BlockPlan::*mask) {
  while (start < end) {
    uint64_t base = start / store::kBlockSize * store::kBlockSize;
    uint64_t stop = std::min(end, base + store::kBlockSize);
    if (blocks.empty() || blocks.back().address != base) blocks.push_back({base, 0, 0});
    unsigned first = static_cast<unsigned>((start - base) / store::kPageSize);
    unsigned count = static_cast<unsigned>((stop - start) / store::kPageSize);
    blocks.back().*mask |= static_cast<uint16_t>(((1u << count) - 1) << first);
    start = stop;
  }
}

bool has_flag(const store::MemoryMap& map, const char* flag) {
  return std::find(map.flags.begin(), map.flags.end(), flag) != map.flags.end();
}

/// fork leaves out MADV_DONTFORK ("dc") and empties MADV_WIPEONFORK ("wf").
bool fork_copies(const store::MemoryMap& map) { return !has_flag(map, "dc") && !has_flag(map, "wf"); }

void plan_region(const PageRegion& region, bool use_parent, bool in_fork, store::MemoryMap& map, PagePlan& out) {
  uint64_t pages = (region.end - region.start) / store::kPageSize;
  if ((region.categories & page::kGuard) != 0) {
    map.guards.emplace_back(region.start, region.end);
    return;
  }
  out.pages_scanned += pages;
  bool of_file = (region.categories & page::kFile) != 0;
  if (map.kind == store::MappingKind::kPrivateFile && of_file) return;
  if ((region.categories & page::kZero) != 0) {
    out.pages_zero += pages;
    return;
  }
  auto& blocks = in_fork ? out.snapshot : out.live;
  if (use_parent && (region.categories & page::kWritten) == 0) {
    mark(blocks, region.start, region.end, &BlockPlan::parent_mask);
    out.pages_parent += pages;
  } else {
    mark(blocks, region.start, region.end, &BlockPlan::data_mask);
    out.pages_data += pages;
  }
}

/// A block that two sorts of mapping share belongs to one list only: the live one, which may read any page.
void separate(PagePlan& plan) {
  auto live = plan.live.begin();
  auto shared = [&](const BlockPlan& block) {
    while (live != plan.live.end() && live->address < block.address) ++live;
    if (live == plan.live.end() || live->address != block.address) return false;
    live->data_mask |= block.data_mask;
    live->parent_mask |= block.parent_mask;
    return true;
  };
  if (!plan.live.empty()) std::erase_if(plan.snapshot, shared);
}

}  // namespace

Result<std::vector<BlockPlan>> plan_content(int fd, uint64_t size) {
  std::vector<BlockPlan> out;
  const uint64_t end = (size + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
  if (fd < 0) {
    mark(out, 0, end, &BlockPlan::data_mask);
    return out;
  }
  for (uint64_t at = 0; at < end;) {
    off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    off_t hole = data < 0 ? -1 : ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return sys_error("shared memory", "cannot find its content");
    const uint64_t first = static_cast<uint64_t>(data) / store::kPageSize * store::kPageSize;
    const uint64_t last = (static_cast<uint64_t>(hole) + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
    mark(out, std::max(first, at), std::min(last, end), &BlockPlan::data_mask);
    at = last;
  }
  return out;
}

uint64_t count_data(const std::vector<BlockPlan>& blocks) {
  uint64_t out = 0;
  for (const BlockPlan& block : blocks) out += static_cast<uint64_t>(__builtin_popcount(block.data_mask));
  return out;
}

std::vector<BlockPlan> PagePlan::all() const {
  std::vector<BlockPlan> out(snapshot.size() + live.size());
  std::merge(snapshot.begin(), snapshot.end(), live.begin(), live.end(), out.begin(),
             [](const BlockPlan& a, const BlockPlan& b) { return a.address < b.address; });
  return out;
}

Result<PagePlan> plan_pages(const proc::Pagemap& pagemap, Tracking tracking, std::vector<store::MemoryMap>& maps) {
  const bool use_parent = tracking == Tracking::kUse || tracking == Tracking::kUseAndArm;
  const bool arm = tracking == Tracking::kArm || tracking == Tracking::kUseAndArm;
  PagePlan out;
  for (store::MemoryMap& map : maps) {
    switch (map.kind) {
      case store::MappingKind::kVdso:
      case store::MappingKind::kSharedMemory:
      case store::MappingKind::kSharedFile: break;
      case store::MappingKind::kAnonymous:
      case store::MappingKind::kPrivateFile: {
        const uint64_t wanted = map.kind == store::MappingKind::kAnonymous ? page::kAll & ~page::kFile : page::kAll;
        CKPT_TRY_ASSIGN(std::vector<PageRegion> regions, arm ? pagemap.scan_and_protect(map.start, map.end, wanted)
                                                             : pagemap.scan(map.start, map.end, wanted));
        for (const PageRegion& region : regions) plan_region(region, use_parent, fork_copies(map), map, out);
        break;
      }
    }
  }
  separate(out);
  return out;
}

}  // namespace ckpt::capture
