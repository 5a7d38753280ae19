#include "lib/memory/page_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "lib/base/io.h"
#include "lib/store/image.h"

namespace ckpt::capture {

namespace {

using proc::PageRegion;
using store::MappingKind;
using store::MemoryMap;
namespace page = proc::page;

constexpr uint64_t kPopulated = page::kPresent | page::kSwapped;
/// What is scanned at a time: some 0.2 ms where little was written, in which the process cannot change its mappings.
/// After so many populated pieces of a range the next ones are twice as large, so that pages that lie far apart cost no
/// call each.
constexpr uint64_t kScanPiece = uint64_t{256} << 20;
constexpr size_t kPiecesOfOneSize = 64;

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

/// fork leaves out MADV_DONTFORK ("dc") and empties MADV_WIPEONFORK ("wf").
bool fork_copies(const MemoryMap& map) { return !map.flags.has("dc") && !map.flags.has("wf"); }

/// Mappings that are neighbours in the list and of one kind, or a part of them: what lies between is not mapped, and
/// costs PAGEMAP_SCAN nothing. To read it page by page takes minutes.
struct MappingRun {
  uint64_t start, end;
  bool of_files;
};

std::vector<MappingRun> ranges_of(const std::vector<MemoryMap>& maps, bool may_join) {
  std::vector<MappingRun> out;
  bool joined = false;
  for (const MemoryMap& map : maps) {
    const bool of_files = map.kind == MappingKind::kPrivateFile;
    if (!is_private(map)) {
      joined = false;
    } else if (may_join && joined && out.back().of_files == of_files) {
      out.back().end = map.end;
    } else {
      out.push_back({map.start, map.end, of_files});
      joined = true;
    }
  }
  return out;
}

/// A range in pieces, each beginning with a populated page: a process may reserve terabytes that it never
/// touches. What is left out is populated later, if at all, and told as holes.
Result<void> cut(const proc::Pagemap& pagemap, const MappingRun& range, std::vector<MappingRun>& pieces,
                 std::vector<PageRegion>& holes) {
  const size_t before = pieces.size();
  for (uint64_t at = range.start; at < range.end;) {
    CKPT_TRY_ASSIGN(const uint64_t first, pagemap.find_populated(at, range.end));
    if (at < first) holes.push_back({at, first, 0});
    if (first == range.end) break;
    const uint64_t size = kScanPiece << (pieces.size() - before) / kPiecesOfOneSize;
    at = first + std::min(range.end - first, size);
    pieces.push_back({first, at, range.of_files});
  }
  return {};
}

/// The changes of a file's mapping, told whether they are the file's own pages: asked only of what was written, because
/// the kernel looks at every page's descriptor for it.
Result<std::vector<PageRegion>> scan_file_changes(const proc::Pagemap& pagemap, const MappingRun& piece) {
  CKPT_TRY_ASSIGN(std::vector<PageRegion> changes, pagemap.scan_changes(piece.start, piece.end));
  std::vector<PageRegion> out;
  for (const PageRegion& region : changes) {
    if ((region.categories & page::kPresent) == 0) {
      out.push_back(region);
      continue;
    }
    CKPT_TRY_ASSIGN(std::vector<PageRegion> told, pagemap.scan(region.start, region.end));
    out.insert(out.end(), told.begin(), told.end());
  }
  return out;
}

Result<std::vector<PageRegion>> scan_piece(const proc::Pagemap& pagemap, const MappingRun& piece, ScanFor what) {
  const uint64_t wanted = piece.of_files ? page::kAll : page::kAll & ~page::kFile;
  switch (what) {
    case ScanFor::kPopulated: return pagemap.scan(piece.start, piece.end, wanted);
    case ScanFor::kProtected: return pagemap.scan_and_protect(piece.start, piece.end, false, wanted);
    case ScanFor::kWritten: return pagemap.scan_and_protect(piece.start, piece.end, true, wanted);
    case ScanFor::kChanges: break;
  }
  return piece.of_files ? scan_file_changes(pagemap, piece) : pagemap.scan_changes(piece.start, piece.end);
}

/// Calls `visit(map, start, end, categories)` for every part of a region that lies in one private mapping.
template <class Maps, class Visit>
void for_each_part(const std::vector<PageRegion>& regions, Maps& maps, Visit visit) {
  auto region = regions.begin();
  for (auto& map : maps) {
    if (!is_private(map)) continue;
    while (region != regions.end() && region->end <= map.start) ++region;
    for (auto at = region; at != regions.end() && at->start < map.end; ++at) {
      visit(map, std::max(at->start, map.start), std::min(at->end, map.end), at->categories);
    }
  }
}

/// Swapped out, and not written since it was protected: kChanges tells of it because it is not present.
bool only_swapped(uint64_t categories) { return (categories & (page::kSwapped | page::kWritten)) == page::kSwapped; }

}  // namespace

Result<std::vector<PageRegion>> scan_private(const proc::Pagemap& pagemap, const std::vector<MemoryMap>& maps,
                                             ScanFor what, WorkerPool* pool) {
  std::vector<MappingRun> pieces;
  std::vector<PageRegion> holes;
  for (const MappingRun& range : ranges_of(maps, pagemap.can_scan())) {
    if (range.end - range.start <= kScanPiece) pieces.push_back(range);
    else CKPT_TRY(cut(pagemap, range, pieces, holes));
  }
  std::vector<std::vector<PageRegion>> found(pieces.size());
  auto scan = [&](size_t i) -> Result<void> {
    CKPT_TRY_ASSIGN(found[i], scan_piece(pagemap, pieces[i], what));
    return {};
  };
  auto is_large = [](const MappingRun& piece) { return piece.end - piece.start > kScanPiece / 2; };
  const bool shared = pool != nullptr && std::count_if(pieces.begin(), pieces.end(), is_large) > 1;
  CKPT_TRY(side_by_side(shared ? pool : nullptr, pieces.size(), scan));
  std::vector<PageRegion> out;
  for (const std::vector<PageRegion>& some : found) out.insert(out.end(), some.begin(), some.end());
  if (what != ScanFor::kChanges) return out;
  const auto by_address = [](const PageRegion& a, const PageRegion& b) { return a.start < b.start; };
  const auto middle = static_cast<ptrdiff_t>(out.size());
  out.insert(out.end(), holes.begin(), holes.end());
  std::inplace_merge(out.begin(), out.begin() + middle, out.end(), by_address);
  return out;
}

PagePlan plan_data(const std::vector<PageRegion>& found, ScanFor what, std::vector<MemoryMap>& maps) {
  PagePlan out;
  for (MemoryMap& map : maps) map.guards.clear();
  for_each_part(found, maps, [&](MemoryMap& map, uint64_t start, uint64_t end, uint64_t categories) {
    const uint64_t pages = (end - start) / store::kPageSize;
    if ((categories & page::kGuard) != 0) {
      map.guards.emplace_back(start, end);
    } else if ((categories & kPopulated) == 0 || (what == ScanFor::kChanges && only_swapped(categories))) {
      return;
    } else if (map.kind == MappingKind::kPrivateFile && (categories & page::kFile) != 0) {
      return;
    } else if ((categories & page::kZero) != 0) {
      out.pages_zero += pages;
    } else {
      mark(fork_copies(map) ? out.snapshot : out.live, start, end, &BlockPlan::data_mask);
      out.pages_data += pages;
    }
  });
  return out;
}

std::vector<MemoryMap> left_out_by_fork(const std::vector<MemoryMap>& maps) {
  std::vector<MemoryMap> out;
  std::copy_if(maps.begin(), maps.end(), std::back_inserter(out),
               [](const MemoryMap& map) { return is_private(map) && !fork_copies(map); });
  return out;
}

std::vector<BlockPlan> plan_unchanged(const std::vector<PageRegion>& changes, const std::vector<MemoryMap>& maps) {
  std::vector<BlockPlan> out;
  auto unchanged = [&](uint64_t start, uint64_t end) {
    if (start < end) mark(out, start, end, &BlockPlan::parent_mask);
  };
  auto change = changes.begin();
  for (const MemoryMap& map : maps) {
    if (!is_private(map)) continue;
    uint64_t at = map.start;
    while (change != changes.end() && change->end <= map.start) ++change;
    for (auto next = change; next != changes.end() && next->start < map.end; ++next) {
      if (only_swapped(next->categories)) continue;
      unchanged(at, next->start);
      at = std::max(at, next->end);
    }
    unchanged(at, map.end);
  }
  return out;
}

void keep_unchanged(const std::vector<PageRegion>& changes, std::vector<BlockPlan>& blocks) {
  auto change = changes.begin();
  for (BlockPlan& block : blocks) {
    const uint64_t end = block.address + store::kBlockSize;
    while (change != changes.end() && change->end <= block.address) ++change;
    uint32_t changed = 0;
    for (auto at = change; at != changes.end() && at->start < end; ++at) {
      if (only_swapped(at->categories)) continue;
      const uint64_t first = (std::max(at->start, block.address) - block.address) / store::kPageSize;
      const uint64_t last = (std::min(at->end, end) - block.address) / store::kPageSize;
      changed |= ((1u << last) - 1) & ~((1u << first) - 1);
    }
    block.parent_mask |= static_cast<uint16_t>(block.data_mask & ~changed);
    block.data_mask &= static_cast<uint16_t>(changed);
  }
}

void unite(std::vector<PageRegion>& changes, const std::vector<PageRegion>& more) {
  std::vector<PageRegion> out;
  auto change = changes.begin();
  for (PageRegion region : more) {
    if (!out.empty()) region.start = std::max(region.start, out.back().end);
    while (change != changes.end() && change->end <= region.start) out.push_back(*change++);
    for (; change != changes.end() && change->start < region.end; out.push_back(*change++)) {
      if (region.start < change->start) out.push_back({region.start, change->start, region.categories});
      region.start = std::max(region.start, change->end);
    }
    if (region.start < region.end) out.push_back(region);
  }
  out.insert(out.end(), change, changes.end());
  changes = std::move(out);
}

Result<std::vector<BlockPlan>> plan_huge_pages(const proc::Pagemap& pagemap, const std::vector<MemoryMap>& maps) {
  std::vector<BlockPlan> out;
  for (const MemoryMap& map : maps) {
    if (map.kind != MappingKind::kHugePages) continue;
    CKPT_TRY_ASSIGN(const std::vector<PageRegion> found, pagemap.scan(map.start, map.end));
    for (const PageRegion& region : found) {
      if ((region.categories & kPopulated) == 0) continue;
      mark(out, std::max(region.start, map.start), std::min(region.end, map.end), &BlockPlan::data_mask);
    }
  }
  return out;
}

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

uint64_t count_unchanged(const std::vector<BlockPlan>& blocks) {
  uint64_t out = 0;
  for (const BlockPlan& block : blocks) out += static_cast<uint64_t>(__builtin_popcount(block.parent_mask));
  return out;
}

}  // namespace ckpt::capture
