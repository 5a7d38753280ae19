#include "lib/memory/common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include "lib/base/trace.h"
#include "lib/memory/fill.h"
#include "lib/memory/sharing.h"
#include "lib/state/mappings/restore.h"
#include "lib/state/validate.h"

namespace ckpt::restore {

namespace {

using store::ImageReader;
using store::MappingKind;
using store::MemoryMap;
using store::ProcessImage;

constexpr uint64_t kHugePage = 2 << 20;

/// A lock would make copies of all its pages at once; what grows down is small, and so is code that was made.
bool is_worth_sharing(const ProcessImage& process, const MemoryMap& map) {
  auto has_policy = [&](const store::MappingPolicy& policy) { return policy.start == map.start; };
  return map.kind == MappingKind::kAnonymous && (map.prot & PROT_EXEC) == 0 && !has_flag(map, "lo") &&
         !has_flag(map, "gd") &&
         std::none_of(process.policies.begin(), process.policies.end(), has_policy);
}

/// Of `layout`, the mappings that are to lie here and the blocks that have their pages.
HeldMemory keep_worthy(const ImageReader& image, const ProcessImage& layout, const std::vector<size_t>& blocks,
                       const MemoryPlan& plan) {
  HeldMemory out;
  for (size_t i = 0; i < layout.maps.size(); ++i) {
    const bool is_filled = plan.supply[i] == Supply::kWrite || plan.supply[i] == Supply::kCopy;
    if (is_filled && is_worth_sharing(layout, layout.maps[i])) out.layout.maps.push_back(layout.maps[i]);
  }
  size_t hint = 0;
  for (size_t block : blocks) {
    bool used = false;
    for_each_part(out.layout.maps, image.blocks()[block], hint, [&](uint16_t part, size_t map) {
      used |= pages_to_write(image.blocks()[block], part, out.layout.maps[map]) != 0;
    });
    if (used) out.blocks.push_back(block);
  }
  return out;
}

size_t index_of(const store::TreeImage& tree, int pid) {
  const auto found = std::find_if(tree.processes.begin(), tree.processes.end(),
                                  [&](const ProcessImage& process) { return process.pid == pid; });
  return static_cast<size_t>(found - tree.processes.begin());
}

/// Those of the blocks (by address) that have some of a mapping.
std::vector<size_t> blocks_in(const ImageReader& image, const std::vector<size_t>& blocks, const MemoryMap& map) {
  auto ends_by = [&](size_t block, uint64_t at) { return address_of(image.blocks()[block]) + store::kBlockSize <= at; };
  auto begins_before = [&](size_t block, uint64_t at) { return address_of(image.blocks()[block]) < at; };
  const auto first = std::lower_bound(blocks.begin(), blocks.end(), map.start, ends_by);
  return {first, std::lower_bound(first, blocks.end(), map.end, begins_before)};
}

uint64_t count_pages(const ImageReader& image, const std::vector<size_t>& blocks, const MemoryMap& map) {
  uint64_t out = 0;
  for (size_t block : blocks_in(image, blocks, map)) {
    const auto& masks = image.blocks()[block];
    out += static_cast<uint64_t>(__builtin_popcount(pages_to_write(masks, part_of(map, masks), map)));
  }
  return out;
}

/// A userfaultfd of ckpt's own memory; none: pages are written.
UniqueFd watch_own_memory(uint64_t start, uint64_t end) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!fd || !proc::begin_faults(fd.get(), false) || !proc::watch_missing(fd.get(), start, end)) return UniqueFd();
  return fd;
}

}  // namespace

Result<void> CommonMemory::place(const ImageReader& image, std::map<Key, HeldMemory>& wanted) {
  uint64_t size = 0;
  // As far from the beginning of a huge page as where it goes, so that huge pages move as a whole.
  for (auto& [key, memory] : wanted) {
    for (const MemoryMap& map : memory.layout.maps) {
      const uint64_t at = (size + kHugePage - 1) / kHugePage * kHugePage + map.start % kHugePage;
      pieces_[key].push_back({map.start, map.end, at, count_pages(image, memory.blocks, map)});
      size = at + (map.end - map.start);
    }
  }
  if (size == 0) return {};
  const std::vector<Range> avoid = ranges_of(image.manifest().tree);
  const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  CKPT_TRY_ASSIGN(memory_, map_clear_of(avoid, size + kHugePage, PROT_NONE, kind, -1,
                                        "the memory that the copies share"));
  const uint64_t base = (reinterpret_cast<uint64_t>(memory_.data()) + kHugePage - 1) / kHugePage * kHugePage;
  for (auto& [key, memory] : wanted) {
    for (size_t i = 0; i < memory.layout.maps.size(); ++i) {
      Piece& piece = pieces_[key][i];
      piece.at += base;
      const int reserve = has_flag(memory.layout.maps[i], "nr") ? MAP_NORESERVE : 0;
      if (::mmap(reinterpret_cast<void*>(piece.at), piece.end - piece.start, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | reserve, -1, 0) == MAP_FAILED)
        return sys_error("", "cannot make the memory that the copies share");
      for (const auto& [flag, advice] : {std::pair("nh", MADV_NOHUGEPAGE), std::pair("hg", MADV_HUGEPAGE)}) {
        if (has_flag(memory.layout.maps[i], flag))
          (void)::madvise(reinterpret_cast<void*>(piece.at), piece.end - piece.start, advice);
      }
    }
  }
  return {};
}

Result<void> CommonMemory::fill(const ImageReader& image, const std::map<Key, HeldMemory>& wanted,
                                ProgressSink& progress, const Cancel& cancel) {
  for (const auto& [key, memory] : wanted) {
    const MemoryPlan preferred = plan_writable_memory(memory.layout);
    MemoryPlan plan;
    plan.supply.assign(memory.layout.maps.size(), Supply::kNone);
    for (size_t i = 0; i < memory.layout.maps.size(); ++i) {
      const Piece& piece = pieces_.at(key)[i];
      UniqueFd userfault;
      if (preferred.supply[i] == Supply::kCopy)
        userfault = watch_own_memory(piece.at, piece.at + (piece.end - piece.start));
      plan.supply[i] = userfault ? Supply::kCopy : Supply::kWrite;
      const Filling filling{memory.layout, plan,       blocks_in(image, memory.blocks, memory.layout.maps[i]), nullptr,
                            ::getpid(),    userfault.get(), piece.at - piece.start};
      CKPT_TRY_ASSIGN(const FillTotals filled, fill_memory(image, filling, progress, cancel));
      bytes_ += filled.bytes;
      plan.supply[i] = Supply::kNone;
    }
  }
  return {};
}

Result<CommonMemory> CommonMemory::make(const ImageReader& image, ProgressSink& progress, const Cancel& cancel) {
  trace::Span span("common memory");
  const store::TreeImage& tree = image.manifest().tree;
  CKPT_TRY(validate(tree));
  CKPT_TRY(validate_pages(tree, image.blocks()));
  std::map<Key, HeldMemory> wanted;
  // What each process forks its children with, as `inherit` will find it.
  std::vector<std::shared_ptr<const HeldMemory>> held(tree.processes.size());
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const ProcessImage& process = tree.processes[i];
    const size_t parent = index_of(tree, process.parent_pid);
    if (parent < i) held[i] = held[parent];
    if (process.zombie || process.memory_of >= 0) continue;
    if (std::optional<HeldMemory> shared = memory_to_share(image, i)) {
      MemoryPlan plan = plan_writable_memory(shared->layout);
      if (held[i] != nullptr) CKPT_TRY(inherit(image, shared->layout, shared->blocks, *held[i], plan));
      wanted[{i, true}] = keep_worthy(image, shared->layout, shared->blocks, plan);
      held[i] = std::make_shared<const HeldMemory>(std::move(*shared));
    }
    MemoryPlan plan = plan_memory(image, process, false);
    const std::vector<size_t> blocks = blocks_to_fill(image, process, plan);
    if (held[i] != nullptr) CKPT_TRY(inherit(image, process, blocks, *held[i], plan));
    wanted[{i, false}] = keep_worthy(image, process, blocks, plan);
  }
  CommonMemory out;
  out.image_id_ = image.manifest().id;
  CKPT_TRY(out.place(image, wanted));
  CKPT_TRY(out.fill(image, wanted, progress, cancel));
  return out;
}

void CommonMemory::offer(size_t process, bool for_children, const ProcessImage& layout, MemoryPlan& plan) const {
  plan.from.assign(layout.maps.size(), 0);
  const auto start = reinterpret_cast<uint64_t>(memory_.data());
  if (for_children && memory_.size() != 0) plan.kept = {start, start + memory_.size()};
  const auto found = pieces_.find({process, for_children});
  if (found == pieces_.end()) return;
  for (size_t i = 0; i < layout.maps.size(); ++i) {
    if (plan.supply[i] != Supply::kWrite && plan.supply[i] != Supply::kCopy) continue;
    auto is_it = [&](const Piece& p) { return p.start == layout.maps[i].start && p.end == layout.maps[i].end; };
    const auto piece = std::find_if(found->second.begin(), found->second.end(), is_it);
    if (piece == found->second.end()) continue;
    plan.supply[i] = Supply::kMove, plan.from[i] = piece->at;
  }
}

uint64_t CommonMemory::pages_of(size_t process, const MemoryPlan& plan) const {
  uint64_t out = 0;
  const auto found = pieces_.find({process, false});
  if (found == pieces_.end()) return 0;
  for (const Piece& piece : found->second) {
    if (std::find(plan.from.begin(), plan.from.end(), piece.at) != plan.from.end()) out += piece.pages;
  }
  return out;
}

}  // namespace ckpt::restore
