// A subreaper below the root: who loses its parent comes to it, before the dump and after the restore.
#include <sys/prctl.h>

#include "target.h"

static pid_t* g_pids;
enum { kEarly, kLate, kMiddle };

static int leaf(void* phase) {
  int number = *(int*)phase;
  child_wait(number);
  return 50 + number;
}

static int ends_early(void* unused) {
  (void)unused;
  int phase = 2;
  g_pids[kEarly] = start_child(leaf, &phase);
  return 0;
}

static int ends_late(void* unused) {
  (void)unused;
  int phase = 3;
  g_pids[kLate] = start_child(leaf, &phase);
  child_wait(4);
  int reaper = 1;
  CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &reaper, 0, 0, 0), 0);
  CHECK_EQUAL(reaper, 0);
  return 60;
}

static int reaper_body(void* unused) {
  (void)unused;
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  expect_exit(start_child(ends_early, NULL), 0);
  pid_t late = start_child(ends_late, NULL);
  child_wait(1);
  int reaper = 0;
  CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &reaper, 0, 0, 0), 0);
  CHECK_EQUAL(reaper, 1);
  CHECK_EQUAL(family_of(g_pids[kEarly]).parent, getpid());
  CHECK_EQUAL(family_of(g_pids[kLate]).parent, late);
  release(4);
  expect_exit(late, 60);
  CHECK_EQUAL(family_of(g_pids[kLate]).parent, getpid());
  release(2);
  release(3);
  expect_exit(g_pids[kEarly], 52);
  expect_exit(g_pids[kLate], 53);
  expect_childless();
  return 61;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_pids = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_pids != MAP_FAILED);
  pid_t below = start_child(reaper_body, NULL);
  target_ready();
  target_wait(NULL);
  int reaper = 1;
  CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &reaper, 0, 0, 0), 0);
  CHECK_EQUAL(reaper, 0);
  release(1);
  expect_exit(below, 61);
  expect_childless();
  target_pass();
}
