#include "lib/base/file_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/io.h"

namespace ckpt {

namespace {

constexpr uint64_t kSpan = 64 << 20;        ///< looked up in the page cache at once
constexpr uint64_t kRun = 64 << 10;         ///< shorter runs of pages are left to read-ahead, which brought them
constexpr uint64_t kWorthIt = 256 << 10;    ///< shorter ranges cost more to ask about than they take

uint64_t page_size() {
  static const auto kSize = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return kSize;
}

/// False also where the kernel does not say. Linux 6.5 counts by folios: mincore, which goes page by page, takes a
/// tenth of the time that hashing warm pages takes.
bool all_resident(int fd, uint64_t begin, uint64_t end) {
  constexpr long kCachestat = 451;  // __NR_cachestat, on every architecture
  struct { uint64_t offset, length; } range{begin, end - begin};
  struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } pages{};
  return ::syscall(kCachestat, fd, &range, &pages, 0) == 0 && pages.cached * page_size() >= end - begin;
}

/// Which whole pages of [begin, end), page aligned, are in the page cache. False: the kernel does not say.
bool ask_residency(int fd, uint64_t begin, uint64_t end, std::vector<unsigned char>& resident) {
  void* map = ::mmap(nullptr, end - begin, PROT_NONE, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (map == MAP_FAILED) return false;
  resident.assign((end - begin) / page_size(), 1);
  const bool told = ::mincore(map, end - begin, resident.data()) == 0;
  ::munmap(map, end - begin);
  return told;
}

void drop_what_was_not(int fd, uint64_t begin, const std::vector<unsigned char>& resident) {
  for (size_t i = 0; i < resident.size();) {
    size_t end = i;
    while (end < resident.size() && (resident[end] & 1) == 0) ++end;
    if (end - i >= kRun / page_size()) {
      ::posix_fadvise(fd, static_cast<off_t>(begin + i * page_size()), static_cast<off_t>((end - i) * page_size()),
                      POSIX_FADV_DONTNEED);
    }
    i = end + 1;
  }
}

}  // namespace

Result<void> FileStream::read(int fd, uint64_t offset, uint64_t length, const std::string& subject,
                              const std::function<Result<void>(ByteSpan)>& each) {
  block_.resize(std::max<size_t>(block_.size(), std::min<uint64_t>(kBlock, length)));
  for (uint64_t span = 0; span < length; span += kSpan) {
    const uint64_t from = offset + span, to = from + std::min(kSpan, length - span);
    const uint64_t begin = (from + page_size() - 1) / page_size() * page_size(), end = to / page_size() * page_size();
    const bool told =
        begin + kWorthIt <= end && !all_resident(fd, begin, end) && ask_residency(fd, begin, end, resident_);
    const bool cold =
        told && std::any_of(resident_.begin(), resident_.end(), [](unsigned char page) { return (page & 1) == 0; });
    if (cold) ::posix_fadvise(fd, static_cast<off_t>(from), static_cast<off_t>(to - from), POSIX_FADV_SEQUENTIAL);
    for (uint64_t at = from; at < to;) {
      auto part = MutableByteSpan(block_).first(std::min<uint64_t>(kBlock, to - at));
      CKPT_TRY(io::pread_exact(fd, part, at, subject));
      CKPT_TRY(each(part));
      at += part.size();
    }
    if (cold) drop_what_was_not(fd, begin, resident_);
  }
  return {};
}

}  // namespace ckpt
