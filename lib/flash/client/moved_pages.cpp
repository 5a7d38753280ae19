#include "lib/flash/client/moved_pages.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "lib/base/checked.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace ckpt::flash {

namespace {

std::mutex g_leaving;                   ///< held through a fork
std::atomic<uint32_t> g_pages_away{0};  ///< of the process; for std::atomic::wait 32 bits: 16 TiB

void before_fork() {
  for (;;) {
    g_leaving.lock();
    const uint32_t away = g_pages_away.load();
    if (away == 0) return;
    g_leaving.unlock();
    g_pages_away.wait(away);
  }
}

void after_fork() { g_leaving.unlock(); }

bool forks_wait() {
  static const bool registered = ::pthread_atfork(before_fork, after_fork, after_fork) == 0;
  return registered;
}

uint32_t pages_of(uint64_t bytes) { return static_cast<uint32_t>(bytes / kPage); }

void are_back(uint64_t bytes) {
  if (g_pages_away.fetch_sub(pages_of(bytes)) == pages_of(bytes)) g_pages_away.notify_all();
}

/// Address space that lies within a page table as `home` does.
std::byte* reserve(const std::byte* home, uint64_t bytes) {
  void* room = ::mmap(nullptr, bytes + kPageTable, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(room);
  const uint64_t head = (reinterpret_cast<uint64_t>(home) - reinterpret_cast<uint64_t>(begin)) % kPageTable;
  if (head != 0) ::munmap(begin, head);
  if (head != kPageTable) ::munmap(begin + head + bytes, kPageTable - head);
  return begin + head;
}

/// Where no more mappings may be made (vm.max_map_count) the pages go back one by one, as copies.
bool copy_back(int fault, std::byte* home, std::byte* away, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPage) {
    uffdio_copy request{};
    request.dst = reinterpret_cast<uint64_t>(home + at);
    request.src = reinterpret_cast<uint64_t>(away + at);
    request.len = kPage;
    while (::ioctl(fault, UFFDIO_COPY, &request) != 0 && errno != EEXIST) {
      if (errno != EAGAIN) return false;
    }
  }
  ::madvise(away, bytes, MADV_DONTNEED);
  ::munmap(away, bytes);
  return true;
}

}  // namespace

PrivateMemory PrivateMemory::read() {
  PrivateMemory out;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return out;
  char* line = nullptr;
  size_t room = 0;
  while (::getline(&line, &room, maps) > 0) {
    unsigned long begin = 0, end = 0, inode = 1;
    char rights[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &begin, &end, rights, &inode) == 4 && inode == 0 &&
        rights[3] == 'p')
      out.mappings_.emplace_back(begin, end);
  }
  std::free(line);
  std::fclose(maps);
  return out;
}

bool PrivateMemory::holds(const std::byte* begin, const std::byte* end) const {
  const auto first = reinterpret_cast<uint64_t>(begin);
  auto after = std::upper_bound(mappings_.begin(), mappings_.end(), std::pair(first, UINT64_MAX));
  return after != mappings_.begin() && (--after)->first <= first && reinterpret_cast<uint64_t>(end) <= after->second;
}

std::byte* move_away(int fault, std::byte* home, uint64_t bytes) {
  if (!forks_wait()) return nullptr;
  std::byte* away = reserve(home, bytes);
  if (away == nullptr) return nullptr;
  {
    const std::lock_guard no_fork(g_leaving);
    g_pages_away += pages_of(bytes);
  }
  if (::mremap(home, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, away) == MAP_FAILED) {
    ::munmap(away, bytes);
    are_back(bytes);
    return nullptr;
  }
  // The registration has moved along. Without it, moving back is no event, and an untouched page is one of zeros.
  uffdio_range range{reinterpret_cast<uint64_t>(away), bytes};
  if (::ioctl(fault, UFFDIO_UNREGISTER, &range) == 0) return away;
  ::mremap(away, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, home);
  are_back(bytes);
  return nullptr;
}

void move_back(int fault, std::byte* home, std::byte* away, uint64_t bytes) {
  while (::mremap(away, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, home) == MAP_FAILED) {
    if (copy_back(fault, home, away, bytes)) break;
    ::usleep(1000);  // memory is short: whoever waits for these pages can only wait
  }
  uffdio_range range{reinterpret_cast<uint64_t>(home), bytes};
  ::ioctl(fault, UFFDIO_WAKE, &range);
  are_back(bytes);
}

}  // namespace ckpt::flash
