// A daemon that forked twice: its session's leader has died, and the root, a subreaper, is its parent now.
#include <sys/prctl.h>

#include "target.h"

static pid_t* g_shared;  // the daemon, and who was its session's leader

static int daemon_body(void* unused) {
  (void)unused;
  while (family_of(getpid()).parent == g_shared[1]) sleep_ms(1);
  g_shared[0] = getpid();
  pid_t parent = getppid(), session = getsid(0);
  child_wait(1);
  CHECK_EQUAL(getppid(), parent);
  CHECK_EQUAL(getsid(0), session);
  CHECK_EQUAL(getpgrp(), session);
  CHECK_EQUAL(munmap(g_shared, PAGE_SIZE), 0);
  return 21;
}

static int first_fork(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  g_shared[1] = getpid();
  pid_t second = fork();
  CHECK(second >= 0);
  if (second == 0) _exit(daemon_body(NULL));
  return 20;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  pid_t first = start_child(first_fork, NULL);
  expect_exit(first, 20);
  while (*(volatile pid_t*)&g_shared[0] == 0) sleep_ms(1);
  pid_t daemon_pid = g_shared[0];
  CHECK_EQUAL(g_shared[1], first);
  target_ready();
  target_wait(NULL);
  int reaper = 0;
  CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &reaper, 0, 0, 0), 0);
  CHECK_EQUAL(reaper, 1);
  struct Family family = family_of(daemon_pid);
  CHECK_EQUAL(family.parent, getpid());
  CHECK_EQUAL(family.session, first);
  CHECK_EQUAL(family.group, first);
  release(1);
  expect_exit(daemon_pid, 21);
  expect_childless();
  target_pass();
}
