// A child in group-stop, and one that was continued, of which the parent has not heard yet: it hears of it once, later.
#include <sys/wait.h>

#include "target.h"

static int stops(void* unused) {
  (void)unused;
  child_ready();
  CHECK_EQUAL(raise(SIGSTOP), 0);
  await_release(1);
  return 5;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int status;
  pid_t stopped = start_child(stops, NULL), continued = start_child(stops, NULL);
  wait_state(stopped, 'T');
  CHECK_EQUAL(waitpid(continued, &status, WUNTRACED), continued);
  CHECK_EQUAL(kill(continued, SIGCONT), 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(waitpid(stopped, &status, WUNTRACED | WNOHANG), stopped);
  CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
  CHECK_EQUAL(waitpid(stopped, &status, WUNTRACED | WNOHANG), 0);
  CHECK_EQUAL(waitpid(continued, &status, WCONTINUED | WNOHANG), continued);
  CHECK(WIFCONTINUED(status));
  CHECK_EQUAL(waitpid(continued, &status, WCONTINUED | WNOHANG), 0);
  CHECK_EQUAL(kill(stopped, SIGCONT), 0);
  release(1);
  expect_exit(stopped, 5);
  expect_exit(continued, 5);
  target_pass();
}
