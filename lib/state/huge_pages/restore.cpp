#include "lib/state/huge_pages/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/state/mappings/plan.h"

namespace ckpt::restore {

namespace {

/// Pages by their size, in bytes.
using Need = std::map<uint64_t, uint64_t>;

/// What a mapping is promised when it is made.
Need pages_needed(const store::TreeImage& tree) {
  Need out;
  std::map<int, uint64_t> shared;  // by object: up to where it is mapped
  for (const store::ProcessImage& process : tree.processes) {
    for (const store::MemoryMap& map : process.maps) {
      if (has_flag(map, "nr")) continue;
      if (map.kind == store::MappingKind::kHugePages) out[map.file_offset] += (map.end - map.start) / map.file_offset;
      if (map.shared_memory < 0) continue;
      uint64_t& end = shared[map.shared_memory];
      end = std::max(end, map.file_offset + (map.end - map.start));
    }
  }
  for (const auto& [index, end] : shared) {
    const store::SharedMemory& memory = tree.shared_memory[static_cast<size_t>(index)];
    if (memory.huge_page != 0) out[memory.huge_page] += std::min(end, memory.size) / memory.huge_page;
  }
  return out;
}

std::optional<uint64_t> read_count(uint64_t size, const char* name) {
  constexpr uint64_t kKib = 1024, kLimit = 1 << 16;  // sysfs calls each file a page long
  auto text = io::read_file(fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB/{}", size / kKib, name), kLimit);
  uint64_t out = 0;
  if (!text || std::sscanf(text->c_str(), "%lu", &out) != 1) return std::nullopt;
  return out;
}

}  // namespace

void check_huge_pages(const store::TreeImage& tree, Reasons& reasons) {
  for (const auto& [size, count] : pages_needed(tree)) {
    const auto free = read_count(size, "free_hugepages"), promised = read_count(size, "resv_hugepages");
    const auto most = read_count(size, "nr_overcommit_hugepages"), more = read_count(size, "surplus_hugepages");
    if (!free || !promised || !most || !more) {
      reasons.add(Code::kUnsupported, fmt::format("this host has no huge pages of {}", human_bytes(size)));
      continue;
    }
    const uint64_t available = *free - std::min(*free, *promised) + (*most - std::min(*most, *more));
    if (available >= count) continue;
    reasons.add(Code::kNoRoom, fmt::format("{} huge pages of {} are needed, and {} are free", count, human_bytes(size),
                                           available));
    reasons.hint("the setting vm.nr_hugepages reserves more (sysctl)");
  }
}

}  // namespace ckpt::restore
