// What the benchmark's two programs share: the clock, write protection over a page table, a scan of it.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kMiB = 1 << 20 };

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void fail(const char* what) {
  perror(what);
  exit(1);
}

static inline char* map_bytes(size_t bytes) {
  char* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  return memory;
}

// linux/fs.h and linux/userfaultfd.h of 6.7: Debian 12's are older.
struct page_region {
  uint64_t start, end, categories;
};
struct pm_scan_arg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define BENCH_PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
enum { kWritten = 1 << 1, kPresent = 1 << 3, kArm = 1 };

// Regions of populated pages with all of `mask`, at most `room` of them; `flags` kArm arms in the same pass.
static inline size_t scan_pages(int pagemap, uint64_t start, uint64_t end, uint64_t mask, uint64_t flags,
                                struct page_region* out, size_t room) {
  size_t found = 0;
  while (start < end && found < room) {
    struct pm_scan_arg arg = {.size = sizeof arg, .flags = flags, .start = start, .end = end};
    arg.vec = (uint64_t)(uintptr_t)(out + found), arg.vec_len = room - found;
    arg.category_mask = mask | kPresent, arg.return_mask = kWritten;
    int n = ioctl(pagemap, BENCH_PAGEMAP_SCAN, &arg);
    if (n < 0) fail("PAGEMAP_SCAN");
    found += (size_t)n;
    uint64_t covered = n > 0 ? out[found - 1].end : start, next = arg.walk_end > covered ? arg.walk_end : covered;
    if (next <= start) break;
    start = next;
  }
  return found;
}

// A userfaultfd that tracks writes to the range asynchronously; -1 where the kernel has none.
static inline int track_writes(char* memory, size_t bytes) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
  struct uffdio_api api = {.api = UFFD_API, .features = (uint64_t)1 << 15};
  struct uffdio_register reg = {.range = {(uintptr_t)memory, bytes}, .mode = UFFDIO_REGISTER_MODE_WP};
  if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}
