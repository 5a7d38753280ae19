// Shared anonymous memory seen by one process: content, holes and changes after a pre-dump.
#include "target.h"

enum { kBytes = 2 << 20 };
static char* g_shared;

static void step(int number) { fill_words(g_shared + (size_t)number * 8 * PAGE_SIZE, PAGE_SIZE, (uint64_t)(1000 + number)); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* hole = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED && hole != MAP_FAILED);
  fill_words(g_shared, kBytes, 41);
  hole[100 * PAGE_SIZE] = 'x';
  target_ready();
  target_wait(step);
  for (size_t page = 0; page < kBytes / PAGE_SIZE; ++page) {
    bool changed = page % 8 == 0 && page > 0 && page / 8 <= (size_t)target_steps();
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      uint64_t wanted = changed ? mix(1000 + page / 8, i) : mix(41, page * PAGE_SIZE / 8 + i);
      if (((uint64_t*)(void*)(g_shared + page * PAGE_SIZE))[i] != wanted) target_fail("page %zu differs", page);
    }
  }
  for (size_t i = 0; i < kBytes; ++i) CHECK_EQUAL(hole[i], i == 100 * PAGE_SIZE ? 'x' : 0);
  char permissions[5], flags[256];
  mapping_flags(g_shared, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "rw-s") == 0);
  target_pass();
}
