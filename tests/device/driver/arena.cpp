// Device addresses and the memfds behind them.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

int gpu_of[kMaxGpus] = {0, 1, 2, 3, 4, 5, 6, 7};

namespace {

constexpr size_t kArena = size_t{256} << 30;
constexpr uint64_t kDeviceBase = 0x100000000000, kShadowBase = 0x140000000000;

struct Arena {
  uint64_t device = 0, shadow = 0;
  std::map<uint64_t, size_t> free;
};

uint64_t reserve(uint64_t wanted) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = ::mmap(reinterpret_cast<void*>(wanted), kArena, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) at = ::mmap(nullptr, kArena + kGranule, PROT_NONE, kFlags, -1, 0);
  if (at == MAP_FAILED) ::perror("stand-in: cannot reserve addresses"), ::abort();
  return (reinterpret_cast<uint64_t>(at) + kGranule - 1) & ~(kGranule - 1);
}

Arena& arena() {
  static Arena& one = *[] {
    auto* made = new Arena;
    made->device = reserve(kDeviceBase);
    made->shadow = reserve(kShadowBase);
    made->free[made->device] = kArena;
    return made;
  }();
  return one;
}

}  // namespace

uint64_t arena_take(size_t size, size_t alignment, uint64_t wanted) {
  alignment = std::max(alignment, kGranule);
  for (auto it = arena().free.begin(); it != arena().free.end(); ++it) {
    auto [start, length] = *it;
    uint64_t at = wanted != 0 ? wanted : (start + alignment - 1) / alignment * alignment;
    if (at < start || at + size > start + length) continue;
    arena().free.erase(it);
    if (at > start) arena().free[start] = at - start;
    if (at + size < start + length) arena().free[at + size] = start + length - at - size;
    return at;
  }
  return wanted != 0 ? arena_take(size, alignment) : 0;
}

void arena_give(uint64_t address, size_t size) {
  auto& free = arena().free;
  auto next = free.lower_bound(address);
  if (next != free.end() && address + size == next->first) {
    size += next->second;
    next = free.erase(next);
  }
  if (next != free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  free[address] = size;
}

bool is_device(uint64_t address) { return address >= arena().device && address - arena().device < kArena; }

char* shadow(uint64_t address) { return reinterpret_cast<char*>(address - arena().device + arena().shadow); }

bool shadow_map(uint64_t address, const Mapping& mapping) {
  char* at = shadow(address);
  void* made = ::mmap(at, mapping.size, mapping.protection, MAP_SHARED | MAP_FIXED, mapping.physical->fd,
                      static_cast<off_t>(mapping.physical->offset + mapping.offset));
  return made == at && ::madvise(at, mapping.size, MADV_DONTFORK) == 0;
}

bool shadow_unmap(uint64_t address, size_t size) {
  char* at = shadow(address);
  return ::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at;
}

int make_memfd(const char* name) {
  int fd = ::memfd_create(name, MFD_CLOEXEC);
  int high = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 700);  // out of the way of the program's own
  if (high < 0) return fd;
  ::close(fd);
  return high;
}

uint64_t inode_of(int fd) {
  struct stat about;
  return fd >= 0 && ::fstat(fd, &about) == 0 ? about.st_ino : 0;
}

}  // namespace ckpt::standin
