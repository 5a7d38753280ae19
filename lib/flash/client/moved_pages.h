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

/// The mappings of this process.
class Mappings {
 public:
  static Mappings read();
  /// Whether one private anonymous mapping holds all of it: what is in there is nowhere else, so it can lie elsewhere.
  bool private_anonymous(const std::byte* begin, const std::byte* end) const;
  /// How many more may be made before half of all that a process may have is used (vm.max_map_count).
  int64_t spare() const { return spare_; }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> anonymous_;  ///< by address
  int64_t spare_ = 0;
};

/// Moves whole pages of one private anonymous mapping, and returns where they lie now. Null: nothing was moved. `fault`
/// has UFFD_FEATURE_EVENT_REMAP, `home` is registered with it for missing pages, and another thread reads its events.
/// Takes three mappings. A child of a fork would find nothing at `home`.
std::byte* move_away(int fault, std::byte* home, uint64_t bytes);

/// Some of what `move_away` moved, and lets go on who waits for it. Until that is done `home` stays mapped. False: no
/// more mappings may be made; the pages came back as copies (a device that was given the old ones no longer sees what
/// is written), and `away` is still mapped, empty.
bool move_back(int fault, std::byte* home, std::byte* away, uint64_t bytes);
/// As `move_back` does where it can do no better. Takes no mapping.
void copy_back(int fault, std::byte* home, std::byte* away, uint64_t bytes);

}  // namespace ckpt::flash
