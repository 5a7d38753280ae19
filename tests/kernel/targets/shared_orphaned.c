// Shared anonymous memory that the root does not have: two children inherited it from one who has died.
#include <sys/prctl.h>

#include "target.h"

enum { kBytes = 256 << 10 };
static char* g_memory;
static pid_t* g_pids;

static int writer(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(first_wrong(g_memory, kBytes, 9), -1);
  fill_words(g_memory, kBytes, 10);
  return 1;
}

static int reader(void* unused) {
  (void)unused;
  child_wait(2);
  CHECK_EQUAL(first_wrong(g_memory, kBytes, 10), -1);
  return 2;
}

static int dies(void* unused) {
  (void)unused;
  g_memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_memory != MAP_FAILED);
  fill_words(g_memory, kBytes, 9);
  g_pids[0] = start_child(writer, NULL);
  g_pids[1] = start_child(reader, NULL);
  return 0;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_pids = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_pids != MAP_FAILED);
  expect_exit(start_child(dies, NULL), 0);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(g_pids[0], 1);
  release(2);
  expect_exit(g_pids[1], 2);
  target_pass();
}
