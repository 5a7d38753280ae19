// POSIX shared memory: one object with a name, one whose name is gone, each mapped by two processes.
#include <sys/stat.h>

#include "target.h"

enum { kBytes = 128 << 10 };
static char *g_named, *g_unnamed;
static int g_unnamed_fd;

static void step(int number) { fill_words(g_unnamed + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(70 + number)); }

static char* make(const char* name, int* fd) {
  *fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (*fd < 0) target_skip("shm_open: %s", strerror(errno));
  CHECK_EQUAL(ftruncate(*fd, kBytes), 0);
  char* memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  strcpy(g_named + 100, "named, by the child");
  strcpy(g_unnamed + kBytes - PAGE_SIZE, "unnamed, by the child");
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char name[256], gone[256];
  target_shm_name(name, sizeof name, "named");
  target_shm_name(gone, sizeof gone, "gone");
  int named;
  g_named = make(name, &named);
  g_unnamed = make(gone, &g_unnamed_fd);
  CHECK_EQUAL(shm_unlink(gone), 0);
  CHECK_EQUAL(close(named), 0);
  fill_words(g_named + PAGE_SIZE, kBytes - PAGE_SIZE, 6);
  fill_words(g_unnamed, kBytes - PAGE_SIZE, 7);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(step);
  CHECK_EQUAL(first_wrong(g_named + PAGE_SIZE, kBytes - PAGE_SIZE, 6), -1);
  for (int page = 0; page < kBytes / (int)PAGE_SIZE - 1; ++page)
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      bool changed = page > 0 && page <= target_steps();
      uint64_t wanted = changed ? mix((uint64_t)(70 + page), i) : mix(7, (size_t)page * PAGE_SIZE / 8 + i);
      CHECK(((uint64_t*)(void*)g_unnamed)[(size_t)page * PAGE_SIZE / 8 + i] == wanted);
    }
  release(1);
  expect_exit(below, 1);
  CHECK(strcmp(g_named + 100, "named, by the child") == 0);
  CHECK(strcmp(g_unnamed + kBytes - PAGE_SIZE, "unnamed, by the child") == 0);
  struct stat about;
  CHECK_EQUAL(fstat(g_unnamed_fd, &about), 0);
  CHECK_EQUAL(about.st_nlink, 0);
  CHECK_EQUAL(about.st_size, kBytes);
  char text[32] = "";
  CHECK_EQUAL(pread(g_unnamed_fd, text, 22, kBytes - (off_t)PAGE_SIZE), 22);
  CHECK(strcmp(text, "unnamed, by the child") == 0);
  int again = shm_open(name, O_RDWR, 0);
  CHECK(again >= 0);
  CHECK_EQUAL(pread(again, text, 20, 100), 20);
  CHECK(strcmp(text, "named, by the child") == 0);
  target_pass();
}
