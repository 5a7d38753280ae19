// The ways to hold on to the memory of one instant while a process goes on, weighed: what the stop costs, and what each
// first write to a page costs after it.
//   snapshot_ways MIB
//   fork    a fork of the process, as pre-dump borrows one
//   sync    userfaultfd, synchronous write protection: a handler saves a page before its first write
//   async   userfaultfd, asynchronous write protection (pre-copy): armed while the process runs, then a scan for what
//   changed
// Little writing: one page in 256. Heavy writing: one in 4. Each way of a fresh start, pages written once before.
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

#include "bench.h"

enum { kLittle = 256, kHeavy = 4, kRegions = 1 << 16 };
static size_t g_bytes;
static char* g_memory;
static int g_pagemap, g_userfault;
static volatile int g_stop;
static struct page_region g_regions[kRegions];

static double milliseconds(uint64_t since) { return (double)(now_ns() - since) * 1e-6; }

/// Microseconds a page.
static double write_every(size_t step) {
  size_t pages = 0;
  uint64_t begin = now_ns();
  for (size_t at = 0; at < g_bytes; at += step * kPage, ++pages) ++g_memory[at];
  return milliseconds(begin) * 1e3 / (double)pages;
}

static void print(const char* way, double stop_ms, double little_us, double heavy_us, double copied_gib) {
  printf("  %-6s stop %8.2f ms; a first write, little writing %6.2f us, heavy %6.2f us; kept beside %.2f GiB\n", way,
         stop_ms, little_us, heavy_us, copied_gib);
}

static void by_fork(void) {
  double stop = 0, us[2];
  for (int heavy = 0; heavy < 2; ++heavy) {
    uint64_t begin = now_ns();
    pid_t child = fork();
    if (child == 0)
      for (;;) pause();
    stop = milliseconds(begin);
    us[heavy] = write_every(heavy ? kHeavy : kLittle);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  print("fork", stop, us[0], us[1], (double)g_bytes / kHeavy / (1 << 30));
}

static void* save_pages(void* unused) {
  static char saved[kPage];  // hot: what is measured is the way there and back
  while (!g_stop) {
    struct pollfd ready = {g_userfault, POLLIN, 0};
    struct uffd_msg messages[64];
    if (poll(&ready, 1, 10) <= 0) continue;
    ssize_t size = read(g_userfault, messages, sizeof messages);
    for (ssize_t i = 0; i < size / (ssize_t)sizeof messages[0]; ++i) {
      uint64_t page = messages[i].arg.pagefault.address & ~(uint64_t)(kPage - 1);
      memcpy(saved, (void*)(uintptr_t)page, kPage);
      struct uffdio_writeprotect go_on = {{page, kPage}, 0};
      ioctl(g_userfault, UFFDIO_WRITEPROTECT, &go_on);
    }
  }
  return unused;
}

static void by_handler(void) {
  double stop = 0, us[2];
  for (int heavy = 0; heavy < 2; ++heavy) {
    g_userfault = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register reg = {.range = {(uintptr_t)g_memory, g_bytes}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (g_userfault < 0 || ioctl(g_userfault, UFFDIO_API, &api) != 0 || ioctl(g_userfault, UFFDIO_REGISTER, &reg) != 0)
      fail("userfaultfd");
    struct uffdio_writeprotect protect = {{(uintptr_t)g_memory, g_bytes}, UFFDIO_WRITEPROTECT_MODE_WP};
    uint64_t begin = now_ns();
    if (ioctl(g_userfault, UFFDIO_WRITEPROTECT, &protect) != 0) fail("UFFDIO_WRITEPROTECT");
    stop = milliseconds(begin);
    pthread_t handler;
    g_stop = 0;
    pthread_create(&handler, NULL, save_pages, NULL);
    us[heavy] = write_every(heavy ? kHeavy : kLittle);
    g_stop = 1;
    pthread_join(handler, NULL);
    close(g_userfault);
  }
  print("sync", stop, us[0], us[1], (double)g_bytes / kHeavy / (1 << 30));
}

static void by_tracking(void) {
  const uint64_t start = (uintptr_t)g_memory;
  double stop = 0, us[2], armed = 0;
  for (int heavy = 0; heavy < 2; ++heavy) {
    g_userfault = track_writes(g_memory, g_bytes);
    if (g_userfault < 0) fail("userfaultfd (6.7)");
    uint64_t begin = now_ns();
    for (size_t found = kRegions; found == kRegions;)
      found = scan_pages(g_pagemap, start, start + g_bytes, kWritten, kArm, g_regions, kRegions);
    armed = milliseconds(begin);
    us[heavy] = write_every(heavy ? kHeavy : kLittle);
    begin = now_ns();
    for (uint64_t at = start; at < start + g_bytes;) {
      size_t found = scan_pages(g_pagemap, at, start + g_bytes, kWritten, 0, g_regions, kRegions);
      at = found == kRegions ? g_regions[found - 1].end : start + g_bytes;
    }
    if (!heavy) stop = milliseconds(begin);
    close(g_userfault);
  }
  print("async", stop, us[0], us[1], 0);
  printf("         (armed while it runs: %.2f ms; what was written is copied in the stop, or in a round before it)\n",
         armed);
}

int main(int argc, char** argv) {
  if (argc != 2 || (g_bytes = (size_t)strtoull(argv[1], NULL, 10) * kMiB) == 0)
    return fprintf(stderr, "usage: snapshot_ways MIB\n"), 2;
  g_memory = map_bytes(g_bytes);
  madvise(g_memory, g_bytes, MADV_NOHUGEPAGE);
  memset(g_memory, 1, g_bytes);
  g_pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (g_pagemap < 0) fail("/proc/self/pagemap");
  printf("%s MiB\n", argv[1]);
  by_fork();
  by_handler();
  by_tracking();
}
