// A zombie that leads a session and a group in which others still live.
#include <sys/prctl.h>

#include "target.h"

static pid_t* g_member;

static int member(void* unused) {
  (void)unused;
  child_wait(1);
  return 31;
}

static int leader(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  *g_member = start_child(member, NULL);
  return 30;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_member = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_member != MAP_FAILED);
  pid_t dead = start_child(leader, NULL);
  wait_state(dead, 'Z');
  pid_t alive = *g_member;
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(family_of(dead).state, 'Z');
  CHECK_EQUAL(family_of(dead).session, dead);
  CHECK_EQUAL(family_of(dead).group, dead);
  CHECK_EQUAL(family_of(alive).session, dead);
  CHECK_EQUAL(family_of(alive).group, dead);
  CHECK_EQUAL(family_of(alive).parent, getpid());
  expect_exit(dead, 30);
  CHECK_EQUAL(family_of(alive).session, dead);
  release(1);
  expect_exit(alive, 31);
  expect_childless();
  target_pass();
}
