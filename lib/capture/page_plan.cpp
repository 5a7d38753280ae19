#include "lib/capture/page_plan.h"

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
/// What one thread scans at a time: some 0.2 ms where little was written.
constexpr uint64_t kScanPiece = uint64_t{256} << 20;

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

bool has_flag(const MemoryMap& map, const char* flag) {
  return std::find(map.flags.begin(), map.flags.end(), flag) != map.flags.end();
}

/// fork leaves out MADV_DONTFORK ("dc") and empties MADV_WIPEONFORK ("wf").
bool fork_copies(const MemoryMap& map) { return !has_flag(map, "dc") && !has_flag(map, "wf"); }

bool is_private(const MemoryMap& map) { return map.kind == MappingKind::kAnonymous || map.kind == MappingKind::kPrivateFile; }

/// A range to scan in one call: a part of a mapping, or neighbours in the list that are of one kind.
struct Piece {
  uint64_t start, end;
  bool of_files;
};

std::vector<Piece> pieces_of(const std::vector<MemoryMap>& maps) {
  std::vector<Piece> out;
  uint64_t covered = 0;
  bool joined = false;  // with the mapping before: nothing that must not be scanned lies between
  for (const MemoryMap& map : maps) {
    if (!is_private(map)) {
      joined = false;
      continue;
    }
    const bool of_files = map.kind == MappingKind::kPrivateFile;
    if (joined && out.back().of_files == of_files && covered + (map.end - map.start) <= kScanPiece) {
      out.back().end = map.end;
      covered += map.end - map.start;
      continue;
    }
    for (uint64_t at = map.start; at < map.end; at += kScanPiece) {
      out.push_back({at, std::min(map.end, at + kScanPiece), of_files});
      covered = out.back().end - at;
    }
    joined = true;
  }
  return out;
}

/// The changes of a file's mapping, told whether they are the file's own pages: asked only of what was written, because the
/// kernel looks at every page's descriptor for it.
Result<std::vector<PageRegion>> scan_file_changes(const proc::Pagemap& pagemap, const Piece& piece) {
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

Result<std::vector<PageRegion>> scan_piece(const proc::Pagemap& pagemap, const Piece& piece, ScanFor what) {
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

Result<std::vector<PageRegion>> scan_private(const proc::Pagemap& pagemap, const std::vector<MemoryMap>& maps, ScanFor what,
                                             WorkerPool* pool) {
  const std::vector<Piece> pieces = pieces_of(maps);
  std::vector<std::vector<PageRegion>> found(pieces.size());
  auto scan = [&](size_t i) -> Result<void> {
    CKPT_TRY_ASSIGN(found[i], scan_piece(pagemap, pieces[i], what));
    return {};
  };
  auto is_large = [](const Piece& piece) { return piece.end - piece.start > kScanPiece / 2; };
  const bool shared = pool != nullptr && std::count_if(pieces.begin(), pieces.end(), is_large) > 1;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!shared) CKPT_TRY(scan(i));
    else if (!pool->submit([&scan, i] { return scan(i); })) break;
  }
  if (shared) CKPT_TRY(pool->finish());
  std::vector<PageRegion> out;
  for (const std::vector<PageRegion>& some : found) out.insert(out.end(), some.begin(), some.end());
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
  std::copy_if(maps.begin(), maps.end(), std::back_inserter(out), [](const MemoryMap& map) { return is_private(map) && !fork_copies(map); });
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
