// Mappings side by side that the kernel does not join: each has another protection or advice than the one before, and
// all are full. Whoever puts their pages back must not take neighbours for one mapping.
#include "target.h"

enum { kMaps = 8, kPagesEach = 603, kPages = kMaps * kPagesEach, kWords = 4096 / 8 };
static uint64_t* g_memory;

static uint64_t word(int page, int i) { return (uint64_t)page * 0x9E3779B97F4A7C15u + (uint64_t)i; }

static void fill(int first, int last) {
  for (int page = first; page < last; ++page) {
    for (int i = 0; i < kWords; ++i) g_memory[page * kWords + i] = word(page, i);
  }
}

static void change(int step) {
  for (int page = 0; page < kPages; page += 2 * kPagesEach) g_memory[page * kWords] = word(page, 0) + (uint64_t)step;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_memory = mmap(NULL, (size_t)kPages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(g_memory != MAP_FAILED);
  fill(0, kPages);
  // Every second one may not be written, and of the others every second one is left out of core dumps.
  for (int map = 0; map < kMaps; ++map) {
    void* start = g_memory + (size_t)map * kPagesEach * kWords;
    if (map % 2 == 1) CHECK_EQUAL(mprotect(start, kPagesEach * 4096, PROT_READ), 0);
    else if (map % 4 == 2) CHECK_EQUAL(madvise(start, kPagesEach * 4096, MADV_DONTDUMP), 0);
  }
  target_ready();
  target_wait(change);
  for (int page = 0; page < kPages; ++page) {
    for (int i = 0; i < kWords; ++i) {
      const int changed = page % (2 * kPagesEach) == 0 && i == 0 ? target_steps() : 0;
      CHECK_EQUAL(g_memory[page * kWords + i], word(page, i) + (uint64_t)changed);
    }
  }
  target_pass();
}
