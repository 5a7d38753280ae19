#include "lib/proc/pagemap.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

// linux/fs.h, 6.7.
struct PmScanArg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PmScanArg);
constexpr uint64_t kWpMatching = 1;
constexpr uint64_t kPage = 4096;

/// A full vector can end a call inside the region it reported last: what the next call says of those pages again is
/// dropped, since protecting them has made them read as unwritten.
void append(std::vector<PageRegion>& out, PageRegion region) {
  if (!out.empty()) region.start = std::max(region.start, out.back().end);
  if (region.start >= region.end) return;
  if (!out.empty() && out.back().end == region.start && out.back().categories == region.categories) {
    out.back().end = region.end;
  } else {
    out.push_back(region);
  }
}

/// False: this kernel does not know the call, or not all of `mask`.
Result<bool> scan_accepts(int fd, uint64_t mask) {
  PageRegion region;
  PmScanArg arg{};
  arg.size = sizeof arg;
  arg.vec = reinterpret_cast<uint64_t>(&region), arg.vec_len = 1;
  arg.start = 0, arg.end = kPage;
  arg.category_anyof_mask = mask, arg.return_mask = mask;
  while (::ioctl(fd, kPagemapScan, &arg) < 0) {
    if (errno == ENOTTY || errno == EINVAL || errno == EOPNOTSUPP) return false;
    if (errno != EINTR) return sys_error("pagemap", "cannot scan pages");
  }
  return true;
}

}  // namespace

Result<Pagemap> Pagemap::open(int pid, bool legacy) {
  Pagemap out;
  out.pid_ = pid;
  CKPT_TRY_ASSIGN(out.fd_, io::open_file("/proc/" + std::to_string(pid) + "/pagemap", O_RDONLY));
  out.known_ = page::kWritten | page::kFile | page::kPresent | page::kSwapped | page::kZero;
  if (legacy) return out;
  CKPT_TRY_ASSIGN(out.can_scan_, scan_accepts(out.fd_.get(), out.known_));
  if (!out.can_scan_) return out;
  CKPT_TRY_ASSIGN(const bool knows_guards, scan_accepts(out.fd_.get(), out.known_ | page::kGuard));
  if (knows_guards) out.known_ |= page::kGuard;
  return out;
}

Result<std::vector<PageRegion>> Pagemap::scan(uint64_t start, uint64_t end, uint64_t wanted) const {
  if (!can_scan_) return scan_legacy(start, end);
  return scan_with(start, end, {0, 0, 0, page::kPresent | page::kSwapped, wanted});
}

Result<std::vector<PageRegion>> Pagemap::scan_and_protect(uint64_t start, uint64_t end, bool only_written,
                                                          uint64_t wanted) const {
  if (!can_scan_) return fail(Code::kUnsupported, "PAGEMAP_SCAN", "this kernel does not have it (6.7 does)");
  // Holes are left out: protecting them too would fill page tables for address space that was never touched, and a page
  // that is populated later reads as written anyway.
  return scan_with(start, end,
                   {kWpMatching, 0, only_written ? page::kWritten : 0, page::kPresent | page::kSwapped, wanted});
}

Result<std::vector<PageRegion>> Pagemap::scan_changes(uint64_t start, uint64_t end) const {
  if (!can_scan_) return fail(Code::kUnsupported, "PAGEMAP_SCAN", "this kernel does not have it (6.7 does)");
  // A hole without a page table does not read as written (MADV_DONTNEED may have freed the table): it is not present.
  return scan_with(start, end, {0, page::kPresent, 0, page::kWritten | page::kPresent, page::kAll & ~page::kFile});
}

Result<uint64_t> Pagemap::find_populated(uint64_t start, uint64_t end) const {
  if (!can_scan_) return start;
  PageRegion first;
  PmScanArg arg{};
  arg.size = sizeof arg, arg.start = start, arg.end = end;
  arg.vec = reinterpret_cast<uint64_t>(&first), arg.vec_len = 1, arg.max_pages = 1;
  arg.category_anyof_mask = arg.return_mask = page::kPresent | page::kSwapped;
  for (;;) {
    const int n = ::ioctl(fd_.get(), kPagemapScan, &arg);
    if (n >= 0) return n == 0 ? end : first.start;
    if (errno != EINTR) return sys_error("/proc/" + std::to_string(pid_) + "/pagemap", "cannot scan its pages");
  }
}

Result<std::vector<PageRegion>> Pagemap::scan_with(uint64_t start, uint64_t end, const Query& query) const {
  thread_local std::vector<PageRegion> batch(8192);
  std::vector<PageRegion> out;
  while (start < end) {
    PmScanArg arg{};
    arg.size = sizeof arg, arg.flags = query.flags;
    arg.start = start, arg.end = end;
    arg.vec = reinterpret_cast<uint64_t>(batch.data()), arg.vec_len = batch.size();
    arg.category_inverted = query.inverted;
    arg.category_mask = query.all_of, arg.category_anyof_mask = query.any_of;
    arg.return_mask = known_ & query.told;
    int n = ::ioctl(fd_.get(), kPagemapScan, &arg);
    if (n < 0) {
      if (errno == EINTR) continue;
      return sys_error("/proc/" + std::to_string(pid_) + "/pagemap", "cannot scan its pages");
    }
    for (int i = 0; i < n; ++i) append(out, batch[static_cast<size_t>(i)]);
    // walk_end alone would not do: the kernel (6.18) walks in rounds of 512 regions and leaves it where an earlier
    // round stopped when the last one reaches the end. What was reported already must not be looked at twice: it has
    // been protected meanwhile and would read as not written.
    uint64_t covered = n > 0 ? batch[static_cast<size_t>(n) - 1].end : start;
    uint64_t next = std::max<uint64_t>(arg.walk_end, covered);
    if (next <= start) break;
    start = next;
  }
  return out;
}

Result<std::vector<PageRegion>> Pagemap::scan_legacy(uint64_t start, uint64_t end) const {
  constexpr uint64_t kPresentBit = uint64_t{1} << 63, kSwappedBit = uint64_t{1} << 62, kFileBit = uint64_t{1} << 61;
  std::vector<PageRegion> out;
  std::vector<uint64_t> entries(64 * 1024);
  while (start < end) {
    size_t want = std::min<uint64_t>(entries.size(), (end - start) / kPage);
    ssize_t n = ::pread(fd_.get(), entries.data(), want * 8, static_cast<off_t>(start / kPage * 8));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("/proc/" + std::to_string(pid_) + "/pagemap", "cannot read");
    if (n < 8) break;
    for (size_t i = 0; i < static_cast<size_t>(n) / 8; ++i, start += kPage) {
      uint64_t entry = entries[i];
      if ((entry & (kPresentBit | kSwappedBit)) == 0) continue;
      uint64_t categories = page::kWritten | ((entry & kPresentBit) != 0 ? page::kPresent : page::kSwapped) |
                            ((entry & kFileBit) != 0 ? page::kFile : 0);
      append(out, {start, start + kPage, categories});
    }
  }
  return out;
}

}  // namespace ckpt::proc
