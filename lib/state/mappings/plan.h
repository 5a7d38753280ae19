// How each mapping of a process gets its pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/state/tree/restorer_area.h"
#include "lib/store/image.h"

namespace ckpt::restore {

enum class Supply : uint8_t {
  kNone,      ///< the image has no page of it
  kWrite,     ///< written from outside, huge pages where the kernel makes them; the mapping must be writable meanwhile
  kCopy,      ///< put in place by userfaultfd: no page is zeroed first
  kOnDemand,  ///< by userfaultfd as well, once the process runs
  kInherit,   ///< the process has it from its birth (sharing.h), and what differs is written; it can be written to
  kMove,      ///< the process has it from its birth, elsewhere, and with all its pages (lib/memory/common.h)
};

struct MemoryPlan {
  std::vector<Supply> supply;  ///< parallel to ProcessImage::maps
  std::vector<uint64_t> from;  ///< parallel to it, or empty: where what is moved is
  Range kept{};                ///< stays mapped for now; empty: nothing

  bool has(Supply what) const { return std::find(supply.begin(), supply.end(), what) != supply.end(); }
  bool needs_userfault() const { return has(Supply::kCopy) || has(Supply::kOnDemand); }
  /// Where the kernel has no userfaultfd for us.
  void write_instead() { std::replace(supply.begin(), supply.end(), Supply::kCopy, Supply::kWrite); }
};

/// On demand, where that is safe. It is not for what is locked into memory, what a fork's child gets wiped and what
/// the kernel may drop at will, nor for files and what is shared, which are written by others, too. Nor is it for the
/// stack, where arguments and environment are: /proc/PID/cmdline does not wait for a missing page, it is empty.
bool may_come_later(const store::ProcessImage& process, const store::MemoryMap& map);

/// `lazy`: what may come later does. The image's blocks need to be there of the other mappings alone, then.
MemoryPlan plan_memory(const store::ImageReader& image, const store::ProcessImage& process, bool lazy);
/// Of mappings that all have pages, and that are to be writable.
MemoryPlan plan_writable_memory(const store::ProcessImage& process);

inline bool has_flag(const store::MemoryMap& map, std::string_view flag) {
  return map.flags.has(flag);
}

/// In the process's address space.
inline uint64_t address_of(const store::ImageReader::ResolvedBlock& block) {
  return block.address & (store::space_base(1) - 1);
}

/// Its pages that lie in the mapping, where some do.
inline uint16_t part_of(const store::MemoryMap& map, const store::ImageReader::ResolvedBlock& block) {
  const uint64_t address = address_of(block);
  const uint64_t first = std::max(map.start, address) - address,
                 last = std::min(map.end, address + store::kBlockSize) - address;
  return static_cast<uint16_t>(((1u << last / store::kPageSize) - 1) & ~((1u << first / store::kPageSize) - 1));
}

/// Calls `visit(mask_of_pages, index_of_map)` for every part of a block that lies in one mapping. Both lists are
/// sorted.
template <class Visit>
void for_each_part(const std::vector<store::MemoryMap>& maps, const store::ImageReader::ResolvedBlock& block,
                   size_t& hint, Visit visit) {
  const uint64_t address = address_of(block);
  while (hint < maps.size() && maps[hint].end <= address) ++hint;
  for (size_t i = hint; i < maps.size() && maps[i].start < address + store::kBlockSize; ++i) {
    visit(part_of(maps[i], block), i);
  }
}

/// Zero pages matter where something else would show through: in a private mapping of a file.
inline uint16_t pages_to_write(const store::ImageReader::ResolvedBlock& block, uint16_t part,
                               const store::MemoryMap& map) {
  uint16_t zero = map.kind == store::MappingKind::kPrivateFile ? block.zero_mask : 0;
  return static_cast<uint16_t>((block.data_mask | zero) & part);
}

}  // namespace ckpt::restore
