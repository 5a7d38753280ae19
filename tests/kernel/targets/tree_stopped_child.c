// Children in group-stop, of which the parent has heard: they stay stopped, report nothing new, and go on when
// continued.
#include <sys/wait.h>

#include "target.h"

static int stops(void* number) {
  child_ready();
  CHECK_EQUAL(raise(*(int*)number), 0);
  await_release(1);
  return 5;
}

static void* sleeps(void* unused) {
  for (;;) sleep_ms(1000);
  return unused;
}

static int stops_with_threads(void* number) {
  start_thread(sleeps, NULL);
  return stops(number);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int hard = SIGSTOP, soft = SIGTSTP, status;
  // SIGTSTP stops no orphaned group: this one has its parent in another group of the same session.
  pid_t children[3] = {start_child(stops, &hard), 0, start_child(stops_with_threads, &hard)};
  children[1] = fork();
  CHECK(children[1] >= 0);
  if (children[1] == 0) {
    CHECK_EQUAL(setpgid(0, 0), 0);
    _exit(stops(&soft));
  }
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(waitpid(children[i], &status, WUNTRACED), children[i]);
    CHECK(WIFSTOPPED(status));
    CHECK_EQUAL(WSTOPSIG(status), i == 1 ? SIGTSTP : SIGSTOP);
  }
  target_ready();
  target_wait(NULL);
  release(1);
  sleep_ms(20);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(family_of(children[i]).state, 'T');
    CHECK_EQUAL(waitpid(children[i], &status, WUNTRACED | WCONTINUED | WNOHANG), 0);
  }
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(kill(children[i], SIGCONT), 0);
    expect_exit(children[i], 5);
  }
  expect_childless();
  target_pass();
}
