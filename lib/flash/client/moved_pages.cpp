#include "lib/flash/client/moved_pages.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace ckpt::flash {

namespace {

int64_t most_mappings() {
  long most = 65'530;  // the kernel's default
  if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(file, "%ld", &most) != 1) most = 0;
    std::fclose(file);
  }
  return most;
}

/// Where there is room, at an address that lies within a page table as `home` does. Null: nowhere.
std::byte* room_for(const std::byte* home, uint64_t bytes) {
  void* room = ::mmap(nullptr, bytes + kPageTable, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  ::munmap(room, bytes + kPageTable);
  auto* begin = static_cast<std::byte*>(room);
  return begin + (reinterpret_cast<uint64_t>(home) - reinterpret_cast<uint64_t>(begin)) % kPageTable;
}

bool moved(std::byte* from, uint64_t bytes, std::byte* to) {
  return ::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

/// The first page that could not be copied, or the end: `bytes`. Each lets go on who waits for it.
uint64_t copy_some(int fault, std::byte* home, std::byte* away, uint64_t at, uint64_t bytes) {
  for (; at < bytes; at += kPage) {
    uffdio_copy request{};
    request.dst = reinterpret_cast<uint64_t>(home + at);
    request.src = reinterpret_cast<uint64_t>(away + at);
    request.len = kPage;
    if (::ioctl(fault, UFFDIO_COPY, &request) != 0 && errno != EEXIST) return at;
  }
  return at;
}

/// From page `at` on. Memory is short where it is not done at once: whoever waits for these pages can only wait.
void copy_rest(int fault, std::byte* home, std::byte* away, uint64_t at, uint64_t bytes) {
  while ((at = copy_some(fault, home, away, at, bytes)) < bytes) ::usleep(1000);
  ::madvise(away, bytes, MADV_DONTNEED);
}

}  // namespace

Mappings Mappings::read() {
  Mappings out;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return out;
  int64_t count = 0;
  char* line = nullptr;
  size_t room = 0;
  for (; ::getline(&line, &room, maps) > 0; ++count) {
    unsigned long begin = 0, end = 0, inode = 1;
    char rights[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &begin, &end, rights, &inode) == 4 && inode == 0 &&
        rights[3] == 'p')
      out.anonymous_.emplace_back(begin, end);
  }
  std::free(line);
  std::fclose(maps);
  out.spare_ = most_mappings() / 2 - count;
  return out;
}

bool Mappings::private_anonymous(const std::byte* begin, const std::byte* end) const {
  const auto first = reinterpret_cast<uint64_t>(begin);
  auto after = std::upper_bound(anonymous_.begin(), anonymous_.end(), std::pair(first, UINT64_MAX));
  return after != anonymous_.begin() && (--after)->first <= first && reinterpret_cast<uint64_t>(end) <= after->second;
}

std::byte* move_away(int fault, std::byte* home, uint64_t bytes) {
  std::byte* room = room_for(home, bytes);
  if (room == nullptr) return nullptr;
  // A hint: where MREMAP_FIXED fails it has unmapped what is there, which may be another thread's by then.
  void* to = ::mremap(home, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, room);
  if (to == MAP_FAILED) return nullptr;
  auto* away = static_cast<std::byte*>(to);
  // The registration has moved along. Without it, moving back is no event, and an untouched page is one of zeros.
  uffdio_range range{reinterpret_cast<uint64_t>(away), bytes};
  if (::ioctl(fault, UFFDIO_UNREGISTER, &range) == 0) return away;
  (void)moved(away, bytes, home);
  return nullptr;
}

bool move_back(int fault, std::byte* home, std::byte* away, uint64_t bytes) {
  while (!moved(away, bytes, home)) {
    // Once one page was copied the program may have written to it: only the others still come from there.
    const uint64_t at = copy_some(fault, home, away, 0, bytes);
    if (at != 0) return copy_rest(fault, home, away, at, bytes), false;
    ::usleep(1000);
  }
  uffdio_range range{reinterpret_cast<uint64_t>(home), bytes};
  ::ioctl(fault, UFFDIO_WAKE, &range);
  return true;
}

void copy_back(int fault, std::byte* home, std::byte* away, uint64_t bytes) {
  copy_rest(fault, home, away, 0, bytes);
}

}  // namespace ckpt::flash
