#include "lib/rebuild/memory_plan.h"

#include "lib/base/io.h"

namespace ckpt::rebuild {

namespace {

using store::MappingKind;
using store::MemoryMap;

constexpr uint64_t kHugePage = 2 << 20;
/// Watching a mapping and letting go of it costs some microseconds, as much as copying instead of writing saves with this.
constexpr uint64_t kWorthWatching = 1 << 20;

bool huge_pages_by_default() {
  auto text = io::read_file("/sys/kernel/mm/transparent_hugepage/enabled", 256);
  return text && text->find("[always]") != std::string::npos;
}

bool may_be_huge(const MemoryMap& map, bool by_default) {
  return map.end - map.start >= kHugePage && !has_flag(map, "nh") && (by_default || has_flag(map, "hg"));
}

}  // namespace

MemoryPlan plan_memory(const store::ImageReader& image, const store::ProcessImage& process, bool lazy) {
  const auto& maps = process.maps;
  MemoryPlan plan;
  plan.supply.assign(maps.size(), Supply::kNone);
  size_t hint = 0;
  auto [first, last] = image.blocks_of(process.space);
  for (size_t i = first; i < last; ++i) {
    const auto& block = image.blocks()[i];
    for_each_part(maps, block, hint, [&](uint16_t part, size_t map) {
      if (pages_to_write(block, part, maps[map]) != 0) plan.supply[map] = Supply::kWrite;
    });
  }
  const bool huge = !lazy && huge_pages_by_default();
  for (size_t i = 0; i < maps.size(); ++i) {
    const MemoryMap& map = maps[i];
    if (plan.supply[i] == Supply::kNone || map.kind != MappingKind::kAnonymous || has_flag(map, "dp")) continue;
    if (lazy && !has_flag(map, "lo") && !has_flag(map, "wf")) plan.supply[i] = Supply::kOnDemand;
    else if (map.end - map.start >= kWorthWatching && !may_be_huge(map, huge)) plan.supply[i] = Supply::kCopy;
  }
  return plan;
}

}  // namespace ckpt::rebuild
