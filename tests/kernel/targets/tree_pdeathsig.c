// The signal at the parent's end: set in a grandchild, not sent before its time, sent when its parent ends.
#include <sys/prctl.h>

#include "target.h"

static pid_t* g_grandchild;
static volatile sig_atomic_t g_told;

static void on_signal(int number) { g_told = number; }

static int grandchild(void* unused) {
  (void)unused;
  CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
  CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGUSR1, 0, 0, 0), 0);
  child_wait(1);
  int number = 0;
  CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &number, 0, 0, 0), 0);
  CHECK_EQUAL(number, SIGUSR1);
  CHECK_EQUAL(g_told, 0);
  release(2);
  for (int i = 0; i < 5000 && g_told == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_told, SIGUSR1);
  return 33;
}

static int child(void* unused) {
  (void)unused;
  *g_grandchild = start_child(grandchild, NULL);
  child_wait(2);
  int number = 0;
  CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &number, 0, 0, 0), 0);
  CHECK_EQUAL(number, 0);
  return 32;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_grandchild = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_grandchild != MAP_FAILED);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(below, 32);
  expect_exit(*g_grandchild, 33);
  expect_childless();
  target_pass();
}
