// Pages that lie elsewhere for a while. Their page tables are moved, not what is in them: 0.3 ms a GiB of small pages
// (measured), where write-protecting them takes 30. Who touches the place that they left waits for a userfaultfd's
// answer. mremap(2), MREMAP_DONTUNMAP: Linux 5.7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ckpt::flash {

inline constexpr uint64_t kPage = 4096;
/// What one page table maps. Page tables move as wholes between addresses that are the same within one.
inline constexpr uint64_t kPageTable = uint64_t{2} << 20;

/// The private anonymous mappings of this process: what is theirs is nowhere else, so it can lie elsewhere.
class PrivateMemory {
 public:
  static PrivateMemory read();
  /// Whether one mapping holds all of it.
  bool holds(const std::byte* begin, const std::byte* end) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> mappings_;  ///< by address
};

/// Moves whole pages of one private anonymous mapping, and returns where they lie now. Null: nothing was moved. `fault`
/// has UFFD_FEATURE_EVENT_REMAP, `home` is registered with it for missing pages, and another thread reads its events.
/// A fork(2) of the program waits until everything is back: its child would find nothing at `home`.
std::byte* move_away(int fault, std::byte* home, uint64_t bytes);

/// Some of what `move_away` moved, and lets go on who waits for it. Until that is done `home` stays mapped.
void move_back(int fault, std::byte* home, std::byte* away, uint64_t bytes);

}  // namespace ckpt::flash
