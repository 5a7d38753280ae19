// Two processes with one table of signal handlers (CLONE_SIGHAND, which needs CLONE_VM).
#include <linux/kcmp.h>
#include <sched.h>

#include "target.h"

static volatile sig_atomic_t g_caught;
static void first(int number) { g_caught = number; }
static void second(int number) { g_caught = 100 + number; }

static int sharer(void* unused) {
  (void)unused;
  child_wait(1);
  struct sigaction now;
  CHECK_EQUAL(sigaction(SIGUSR1, NULL, &now), 0);
  CHECK(now.sa_handler == first);
  now.sa_handler = second;
  CHECK_EQUAL(sigaction(SIGUSR1, &now, NULL), 0);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(signal(SIGUSR1, first) != SIG_ERR);
  pid_t together = start_clone(CLONE_VM | CLONE_SIGHAND | SIGCHLD, sharer, NULL);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(syscall(SYS_kcmp, getpid(), together, KCMP_SIGHAND, 0, 0), 0);
  release(1);
  expect_exit(together, 1);
  CHECK_EQUAL(raise(SIGUSR1), 0);
  CHECK_EQUAL(g_caught, 100 + SIGUSR1);
  target_pass();
}
