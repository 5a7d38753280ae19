// Children in group-stop, and one that was continued, of which the parent has not heard yet: it hears of each once,
// later, and by which signal it was stopped. A second SIGSTOP that waits for a stopped process changes nothing.
#include <sys/wait.h>

#include "target.h"

static int stops(void* unused) {
  (void)unused;
  child_ready();
  CHECK_EQUAL(raise(SIGSTOP), 0);
  await_release(1);
  return 5;
}

static int stops_softly(void* unused) {
  (void)unused;
  CHECK_EQUAL(setpgid(0, 0),
              0);  // its parent is in another group of the session: no orphaned group, which SIGTSTP would not stop
  child_ready();
  CHECK_EQUAL(raise(SIGTSTP), 0);
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
  pid_t soft = start_child(stops_softly, NULL), twice = start_child(stops, NULL);
  wait_state(soft, 'T');
  wait_state(twice, 'T');
  CHECK_EQUAL(kill(twice, SIGSTOP), 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(waitpid(stopped, &status, WUNTRACED | WNOHANG), stopped);
  CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
  CHECK_EQUAL(waitpid(stopped, &status, WUNTRACED | WNOHANG), 0);
  CHECK_EQUAL(waitpid(soft, &status, WUNTRACED | WNOHANG), soft);
  CHECK(WIFSTOPPED(status));
  CHECK_EQUAL(WSTOPSIG(status), SIGTSTP);
  CHECK_EQUAL(waitpid(twice, &status, WUNTRACED | WNOHANG), twice);
  CHECK_EQUAL(waitpid(continued, &status, WCONTINUED | WNOHANG), continued);
  CHECK(WIFCONTINUED(status));
  CHECK_EQUAL(waitpid(continued, &status, WCONTINUED | WNOHANG), 0);
  CHECK_EQUAL(kill(stopped, SIGCONT), 0);
  CHECK_EQUAL(kill(soft, SIGCONT), 0);
  CHECK_EQUAL(kill(twice, SIGCONT), 0);
  release(1);
  expect_exit(stopped, 5);
  expect_exit(continued, 5);
  expect_exit(soft, 5);
  expect_exit(twice, 5);
  target_pass();
}
