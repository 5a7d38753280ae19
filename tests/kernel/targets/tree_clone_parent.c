// A process made with CLONE_PARENT by a child: the root is its parent.
#include <sched.h>

#include "target.h"

static pid_t* g_sibling;

static int sibling(void* unused) {
  (void)unused;
  pid_t parent = getppid();
  child_wait(1);
  CHECK_EQUAL(getppid(), parent);
  return 12;
}

static int child(void* unused) {
  (void)unused;
  *g_sibling = start_clone(CLONE_PARENT, sibling, NULL);
  child_wait(1);
  expect_childless();
  return 11;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_sibling = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_sibling != MAP_FAILED);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(family_of(below).parent, getpid());
  CHECK_EQUAL(family_of(*g_sibling).parent, getpid());
  release(1);
  expect_exit(below, 11);
  expect_exit(*g_sibling, 12);
  expect_childless();
  target_pass();
}
