// Deleted files that are mapped alone: shared by two processes, changed between the dumps of a chain; and privately, as
// a library that was replaced.
#include <sys/stat.h>

#include "target.h"

enum { kBytes = 64 << 10 };
static char* g_shared;

static void step(int number) { fill_words(g_shared + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(80 + number)); }

static char* map_deleted(const char* name, uint64_t seed, int protection, int flags) {
  static char content[kBytes];
  fill_words(content, kBytes, seed);
  int fd = open(name, O_CREAT | O_RDWR, 0700);
  CHECK_EQUAL(write(fd, content, kBytes), kBytes);
  char* memory = mmap(NULL, kBytes, protection, flags, fd, 0);
  CHECK(memory != MAP_FAILED && close(fd) == 0 && unlink(name) == 0);
  return memory;
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  strcpy(g_shared + kBytes - PAGE_SIZE, "by the child");
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = map_deleted("shared", 21, PROT_READ | PROT_WRITE, MAP_SHARED);
  char* private = map_deleted("private", 22, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  char* library = map_deleted("library", 23, PROT_READ | PROT_EXEC, MAP_PRIVATE);
  fill_words(private + PAGE_SIZE, PAGE_SIZE, 24);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(step);
  for (int page = 0; page < kBytes / (int)PAGE_SIZE; ++page)
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      bool changed = page > 0 && page <= target_steps();
      uint64_t wanted = changed ? mix((uint64_t)(80 + page), i) : mix(21, (size_t)page * PAGE_SIZE / 8 + i);
      CHECK(((uint64_t*)(void*)g_shared)[(size_t)page * PAGE_SIZE / 8 + i] == wanted);
    }
  CHECK_EQUAL(first_wrong(library, kBytes, 23), -1);
  CHECK_EQUAL(first_wrong(private, PAGE_SIZE, 22), -1);
  CHECK_EQUAL(first_wrong(private + PAGE_SIZE, PAGE_SIZE, 24), -1);
  for (size_t i = 2 * PAGE_SIZE / 8; i < kBytes / 8; ++i) CHECK(((uint64_t*)(void*)private)[i] == mix(22, i));
  char permissions[5], flags[256];
  mapping_flags(library, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "r-xp") == 0);
  mapping_flags(g_shared, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "rw-s") == 0);
  release(1);
  expect_exit(below, 1);
  CHECK(strcmp(g_shared + kBytes - PAGE_SIZE, "by the child") == 0);
  CHECK(access("shared", F_OK) != 0 && access("private", F_OK) != 0 && access("library", F_OK) != 0);
  target_pass();
}
