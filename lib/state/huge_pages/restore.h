// Huge pages of hugetlbfs: how they are asked for, and whether there are enough.
#pragma once

#include <bit>
#include <cstdint>

#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// For mmap and memfd_create: pages of that many bytes, a power of 2.
constexpr int huge_page_flag(uint64_t bytes) {
  constexpr int kShift = 26;  // MAP_HUGE_SHIFT, MFD_HUGE_SHIFT
  return static_cast<int>(static_cast<unsigned>(std::countr_zero(bytes)) << kShift);
}

/// kNoRoom: fewer are free, and not promised to others, than the processes will be promised. kUnsupported: this host
/// has none of that size.
void check_huge_pages(const store::TreeImage& tree, Reasons& reasons);

}  // namespace ckpt::restore
