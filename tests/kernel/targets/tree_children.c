// Three children with two grandchildren each: pids, parents, exit statuses, one SIGCHLD handler that must hear of
// nothing but the ends that are real.
#include <sys/wait.h>

#include "target.h"

enum { kChildren = 3, kGrandchildren = 2 };
static volatile sig_atomic_t g_ends;

static void on_child(int number) {
  (void)number;
  ++g_ends;
}

static int grandchild(void* phase_and_index) {
  pid_t self = getpid(), parent = getppid();
  child_wait(*(int*)phase_and_index);
  CHECK_EQUAL(getpid(), self);
  CHECK_EQUAL(getppid(), parent);
  return 40 + ((int*)phase_and_index)[1];
}

static int child(void* index) {
  pid_t self = getpid(), parent = getppid(), below[kGrandchildren];
  int number = *(int*)index;
  for (int i = 0; i < kGrandchildren; ++i) below[i] = start_child(grandchild, (int[]){2 + number, i});
  child_wait(1);
  CHECK_EQUAL(getpid(), self);
  CHECK_EQUAL(getppid(), parent);
  CHECK_EQUAL(number, *(int*)index);
  for (int i = 0; i < kGrandchildren; ++i) {
    CHECK_EQUAL(family_of(below[i]).parent, self);
    CHECK_EQUAL(waitpid(below[i], NULL, WNOHANG), 0);
  }
  release(2 + number);
  for (int i = 0; i < kGrandchildren; ++i) expect_exit(below[i], 40 + i);
  expect_childless();
  return 10 + number;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
  CHECK_EQUAL(sigaction(SIGCHLD, &action, NULL), 0);
  pid_t children[kChildren];
  for (int i = 0; i < kChildren; ++i) children[i] = start_child(child, &i);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_ends, 0);
  for (int i = 0; i < kChildren; ++i) {
    struct Family family = family_of(children[i]);
    CHECK_EQUAL(family.parent, getpid());
    CHECK_EQUAL(family.group, getpgrp());
    CHECK_EQUAL(family.session, getsid(0));
    CHECK_EQUAL(waitpid(children[i], NULL, WNOHANG), 0);
  }
  release(1);
  for (int i = 0; i < kChildren; ++i) expect_exit(children[i], 10 + i);
  CHECK(g_ends > 0);
  expect_childless();
  target_pass();
}
