// madvise marks and what lies behind them: pages kept from a fork are still part of the process.
#include "target.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static struct Marked {
  int advice;
  const char* flag;
  char* memory;
} g_marked[] = {
    {MADV_DONTFORK, " dc ", NULL},    {MADV_WIPEONFORK, " wf ", NULL}, {MADV_DONTDUMP, " dd ", NULL},
    {MADV_HUGEPAGE, " hg ", NULL},    {MADV_NOHUGEPAGE, " nh ", NULL}, {MADV_SEQUENTIAL, " sr ", NULL},
    {MADV_RANDOM, " rr ", NULL},      {MADV_MERGEABLE, " mg ", NULL},
};
enum { kMarked = sizeof g_marked / sizeof g_marked[0], kBytes = 4 << 20 };

static void step(int number) {
  for (int i = 0; i < kMarked; ++i)
    if (g_marked[i].memory != NULL) fill_words(g_marked[i].memory, kBytes / 4, (uint64_t)(70 + i + 100 * number));
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < kMarked; ++i) {
    char* area = map_pages(kBytes + 2 * PAGE_SIZE);  // one page between two mappings: they must not merge
    g_marked[i].memory = area + PAGE_SIZE;
    if (madvise(g_marked[i].memory, kBytes, g_marked[i].advice) != 0) {
      dprintf(1, "madvise %d: %s, left out\n", g_marked[i].advice, strerror(errno));
      g_marked[i].memory = NULL;
      continue;
    }
    fill_words(g_marked[i].memory, kBytes, (uint64_t)(70 + i));
  }
  char* guarded = map_pages(16 * PAGE_SIZE);
  fill_words(guarded, 16 * PAGE_SIZE, 90);
  bool guards = madvise(guarded + 4 * PAGE_SIZE, 2 * PAGE_SIZE, MADV_GUARD_INSTALL) == 0;
  target_ready();
  target_wait(step);
  for (int i = 0; i < kMarked; ++i) {
    char *memory = g_marked[i].memory, permissions[5], flags[256];
    if (memory == NULL) continue;
    uint64_t seed = (uint64_t)(70 + i);
    if (first_wrong(memory, kBytes / 4, target_steps() == 0 ? seed : seed + 100 * (uint64_t)target_steps()) != -1)
      target_fail("memory with advice %d differs", g_marked[i].advice);
    for (size_t word = kBytes / 4 / 8; word < kBytes / 8; ++word)
      if (((uint64_t*)(void*)memory)[word] != mix(seed, word))
        target_fail("advice %d: word %zu", g_marked[i].advice, word);
    mapping_flags(memory, permissions, flags, sizeof flags);
    if (strstr(flags, g_marked[i].flag) == NULL)
      target_fail("the mark of advice %d is lost: %s", g_marked[i].advice, flags);
  }
  if (guards) {
    int null = open("/dev/zero", O_RDONLY);
    CHECK(read(null, guarded + 4 * PAGE_SIZE, 1) == -1 && errno == EFAULT);
    CHECK(read(null, guarded + 6 * PAGE_SIZE - 1, 1) == -1 && errno == EFAULT);
    CHECK_EQUAL(first_wrong(guarded, 4 * PAGE_SIZE, 90), -1);
    CHECK_EQUAL(((uint64_t*)(void*)guarded)[6 * PAGE_SIZE / 8], mix(90, 6 * PAGE_SIZE / 8));
  }
  target_pass();
}
