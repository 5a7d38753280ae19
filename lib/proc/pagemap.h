// Which pages a process has, and which it wrote: /proc/PID/pagemap.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::proc {

/// Categories of a page, with the values of PAGEMAP_SCAN (linux/fs.h of 6.7; Debian 12's headers are older).
namespace page {
constexpr uint64_t kWritten = 1 << 1;  ///< written since it was last write-protected; always, where nothing tracks
constexpr uint64_t kFile = 1 << 2;     ///< page cache, shared memory: not a private copy
constexpr uint64_t kPresent = 1 << 3;
constexpr uint64_t kSwapped = 1 << 4;
constexpr uint64_t kZero = 1 << 5;     ///< the kernel's shared zero page
constexpr uint64_t kGuard = 1 << 8;    ///< MADV_GUARD_INSTALL (6.15)
constexpr uint64_t kAll = ~uint64_t{0};
}  // namespace page

struct PageRegion {
  uint64_t start = 0, end = 0;
  uint64_t categories = 0;
};

class Pagemap {
 public:
  /// `legacy`: read the 8 bytes a page of the old interface even where PAGEMAP_SCAN (6.7) is there; every page then
  /// reads as written, and guards and zero pages are not told apart.
  static Result<Pagemap> open(int pid, bool legacy = false);

  /// Populated regions of [start, end), by address, neighbours of equal categories merged. Only the categories of
  /// `wanted` are told: kFile makes the kernel look at every page's descriptor, 15 ms a GiB where the rest takes 2.
  Result<std::vector<PageRegion>> scan(uint64_t start, uint64_t end, uint64_t wanted = page::kAll) const;
  /// As `scan`, and what is told is write-protected in the same pass: its range must be registered with a userfaultfd
  /// in asynchronous mode. `kWritten` next time means written since now. `only_written`: of pages that are not written
  /// since they were protected nothing is told.
  Result<std::vector<PageRegion>> scan_and_protect(uint64_t start, uint64_t end, bool only_written,
                                                   uint64_t wanted = page::kAll) const;
  /// Everything of [start, end) but pages that are present and not written: what is new, gone, swapped out, a hole.
  /// Where little was written this is the quick one: 0.8 ms a GiB where `scan` takes 5, since it tells of few pages.
  Result<std::vector<PageRegion>> scan_changes(uint64_t start, uint64_t end) const;
  /// The first page of [start, end) that is populated; `end` where there is none, `start` where the kernel cannot tell
  /// (no PAGEMAP_SCAN). Page tables that are not there cost nothing: 64 TiB of them take some microseconds.
  Result<uint64_t> find_populated(uint64_t start, uint64_t end) const;
  bool can_scan() const { return can_scan_; }

 private:
  struct Query {
    uint64_t flags = 0, inverted = 0, all_of = 0, any_of = 0, told = 0;
  };
  Result<std::vector<PageRegion>> scan_with(uint64_t start, uint64_t end, const Query& query) const;
  Result<std::vector<PageRegion>> scan_legacy(uint64_t start, uint64_t end) const;
  UniqueFd fd_;
  int pid_ = 0;
  bool can_scan_ = false;
  uint64_t known_ = 0;  ///< categories that this kernel knows
};

}  // namespace ckpt::proc
