// Shared anonymous memory seen by one process: content, holes and changes after a pre-dump; and mapped privately.
#include "target.h"

enum { kBytes = 2 << 20 };
static char* g_shared;

static void step(int number) {
  fill_words(g_shared + (size_t)number * 8 * PAGE_SIZE, PAGE_SIZE, (uint64_t)(1000 + number));
}

/// Through /proc/self/map_files; NULL: not with these rights.
static char* map_privately(const char* shared) {
  char path[96];
  snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)(uintptr_t)shared,
           (unsigned long)(uintptr_t)shared + kBytes);
  int fd = open(path, O_RDONLY);
  if (fd < 0) return NULL;
  char* memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  CHECK(memory != MAP_FAILED && close(fd) == 0);
  return memory;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* hole = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED && hole != MAP_FAILED);
  fill_words(g_shared, kBytes, 41);
  hole[100 * PAGE_SIZE] = 'x';
  char* private = map_privately(hole);
  if (private != NULL) private[0] = 'p';
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
  for (size_t i = 0; private != NULL && i < kBytes; ++i)
    CHECK_EQUAL(private[i], i == 100 * PAGE_SIZE ? 'x' : i == 0 ? 'p' : 0);
  char permissions[5], flags[256];
  mapping_flags(g_shared, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "rw-s") == 0);
  target_pass();
}
