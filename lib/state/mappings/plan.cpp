#include "lib/state/mappings/plan.h"

#include <sys/mman.h>

#include "lib/base/io.h"

namespace ckpt::restore {

namespace {

using store::MappingKind;
using store::MemoryMap;

constexpr uint64_t kHugePage = 2 << 20;
/// Watching a mapping and letting go of it costs some microseconds, as much as copying instead of writing saves with
/// this.
constexpr uint64_t kWorthWatching = 1 << 20;

bool huge_pages_by_default() {
  auto text = io::read_file("/sys/kernel/mm/transparent_hugepage/enabled", 256);
  return text && text->find("[always]") != std::string::npos;
}

bool may_be_huge(const MemoryMap& map, bool by_default) {
  return map.end - map.start >= kHugePage && !has_flag(map, "nh") && (by_default || has_flag(map, "hg"));
}

}  // namespace

bool may_come_later(const store::ProcessImage& process, const MemoryMap& map) {
  if (map.kind != MappingKind::kAnonymous || has_flag(map, "lo") || has_flag(map, "wf"))
    return false;
  constexpr uint64_t kUsualStack = 8 << 20;
  auto has = [&](uint64_t first, uint64_t last) { return map.start < last && first < map.end; };
  const store::MemoryBounds& bounds = process.bounds;
  const bool is_shown = has(bounds.arg_start, bounds.arg_end) || has(bounds.env_start, bounds.env_end);
  return !is_shown || map.end - map.start > kUsualStack;
}

namespace {

/// Large anonymous mappings are filled by copies where no huge pages would come of writing.
void prefer_copies(const std::vector<MemoryMap>& maps, bool huge, MemoryPlan& plan) {
  for (size_t i = 0; i < maps.size(); ++i) {
    const MemoryMap& map = maps[i];
    if (plan.supply[i] != Supply::kWrite || map.kind != MappingKind::kAnonymous) continue;
    if (map.end - map.start >= kWorthWatching && !may_be_huge(map, huge)) plan.supply[i] = Supply::kCopy;
  }
}

}  // namespace

MemoryPlan plan_memory(const store::ImageReader& image, const store::ProcessImage& process, bool lazy) {
  const auto& maps = process.maps;
  MemoryPlan plan;
  plan.supply.assign(maps.size(), Supply::kNone);
  const auto [first, last] = image.blocks_of(process.space);
  const auto& blocks = image.blocks();
  // One page decides on a mapping, and large ones have pages throughout.
  const auto ends_by = [](const store::ImageReader::ResolvedBlock& block, uint64_t address) {
    return address_of(block) + store::kBlockSize <= address;
  };
  auto block = blocks.begin() + static_cast<ptrdiff_t>(first);
  const auto end = blocks.begin() + static_cast<ptrdiff_t>(last);
  for (size_t i = 0; i < maps.size(); ++i) {
    if (lazy && may_come_later(process, maps[i])) {
      const uint64_t base = store::space_base(process.space);
      if (image.may_have_data(base + maps[i].start, base + maps[i].end)) plan.supply[i] = Supply::kOnDemand;
      continue;
    }
    block = std::lower_bound(block, end, maps[i].start, ends_by);
    for (auto at = block; at != end && address_of(*at) < maps[i].end && plan.supply[i] == Supply::kNone; ++at) {
      if (pages_to_write(*at, part_of(maps[i], *at), maps[i]) != 0) plan.supply[i] = Supply::kWrite;
    }
  }
  prefer_copies(maps, !lazy && huge_pages_by_default(), plan);
  return plan;
}

MemoryPlan plan_writable_memory(const store::ProcessImage& process) {
  MemoryPlan plan;
  for (const MemoryMap& map : process.maps)
    plan.supply.push_back(map.kind == MappingKind::kVdso ? Supply::kNone : Supply::kWrite);
  const MemoryPlan written = plan;
  prefer_copies(process.maps, huge_pages_by_default(), plan);
  // A copy leaves the protection as it is.
  for (size_t i = 0; i < process.maps.size(); ++i) {
    if ((process.maps[i].prot & PROT_WRITE) == 0) plan.supply[i] = written.supply[i];
  }
  return plan;
}

}  // namespace ckpt::restore
