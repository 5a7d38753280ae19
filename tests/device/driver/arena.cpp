// Device addresses, the memfds behind them, and the ledger of what is in use on each GPU.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
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

// --- The ledger: a file of records, locked while it is read and written. Records of processes that are gone do not count.

namespace {

struct Record {
  int32_t pid;
  uint32_t pad;
  uint64_t start;  ///< of the process, which tells it from another of that number
  uint64_t used[kMaxGpus];
};
constexpr int kRecords = 128;
uint64_t own[kMaxGpus];

/// Field 22 of /proc/PID/stat, 0: no such process. Allocates nothing.
uint64_t start_of(int pid) {
  char path[64], text[1024];
  ::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? 0 : ::read(fd, text, sizeof(text) - 1);
  if (fd >= 0) ::close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = ::strrchr(text, ')');
  if (at == nullptr || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
  for (int field = 2; field < 22 && at != nullptr; ++field) at = ::strchr(at + 1, ' ');
  uint64_t start = 0;
  for (at = at == nullptr ? "" : at + 1; *at >= '0' && *at <= '9'; ++at) start = start * 10 + static_cast<uint64_t>(*at - '0');
  return start;
}

/// Changes what this process uses of a GPU, if then all together use no more than there is. What they use now.
uint64_t change(int gpu, int64_t by, bool& fits) {
  static Record records[kRecords];  // only with the file's lock and lock(), or the gate closed
  uint64_t capacity = settings().capacity[gpu];
  int fd = -1;
  if (!settings().folder.empty()) {
    char path[512];
    ::snprintf(path, sizeof(path), "%s/ledger", settings().folder.c_str());
    fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  }
  uint64_t used = 0;
  if (fd < 0) {
    used = own[gpu];
  } else {
    ::flock(fd, LOCK_EX);
    ::memset(records, 0, sizeof(records));
    if (::pread(fd, records, sizeof(records), 0) < 0) ::memset(records, 0, sizeof(records));
    int pid = ::getpid();
    for (Record& record : records) {
      if (record.pid == pid || (record.pid != 0 && start_of(record.pid) != record.start)) record = {};
      used += record.used[gpu];
    }
    used += own[gpu];
  }
  fits = by <= 0 || used + static_cast<uint64_t>(by) <= capacity;
  if (fits) {
    own[gpu] += static_cast<uint64_t>(by);
    used += static_cast<uint64_t>(by);
  }
  if (fd >= 0) {
    uint64_t any = 0;
    for (uint64_t bytes : own) any |= bytes;
    for (Record& record : records) {
      if (record.pid != 0 || any == 0) continue;
      record.pid = ::getpid();
      record.start = start_of(record.pid);
      ::memcpy(record.used, own, sizeof(own));
      break;
    }
    if (::pwrite(fd, records, sizeof(records), 0) < 0) fits = false;
    ::close(fd);
  }
  return used;
}

}  // namespace

bool ledger_take(int gpu, uint64_t bytes) {
  bool fits = false;
  change(gpu, static_cast<int64_t>(bytes), fits);
  return fits;
}

void ledger_give(int gpu, uint64_t bytes) {
  bool fits = false;
  change(gpu, -static_cast<int64_t>(bytes), fits);
}

uint64_t ledger_used(int gpu) {
  bool fits = false;
  return change(gpu, 0, fits);
}

}  // namespace ckpt::standin
