// Children that report their end by another signal than SIGCHLD, and by none.
#include <sched.h>
#include <sys/wait.h>

#include "target.h"

static volatile sig_atomic_t g_usr2, g_chld;
static void on_usr2(int number) { g_usr2 += number == SIGUSR2; }
static void on_chld(int number) { g_chld += number == SIGCHLD; }

static int body(void* phase) {
  child_wait((int)(intptr_t)phase);
  return 4;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(signal(SIGUSR2, on_usr2) != SIG_ERR && signal(SIGCHLD, on_chld) != SIG_ERR);
  pid_t loud = start_clone(SIGUSR2, body, (void*)1);
  pid_t silent = start_clone(0, body, (void*)2);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_usr2 + g_chld, 0);
  CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);  // neither is a child to those that do not ask for such
  CHECK_EQUAL(waitpid(-1, NULL, WNOHANG | __WCLONE), 0);
  release(1);
  for (int i = 0; i < 5000 && g_usr2 == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_usr2, 1);
  expect_exit(loud, 4);
  release(2);
  expect_exit(silent, 4);
  CHECK_EQUAL(g_usr2, 1);
  CHECK_EQUAL(g_chld, 0);
  target_pass();
}
