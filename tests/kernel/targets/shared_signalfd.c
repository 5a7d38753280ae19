// A signalfd of two processes: each reads its own signals from it; queued ones with their values are kept.
#include <sys/signalfd.h>

#include "target.h"

static int g_signals;
static pid_t g_root_pid;

static void expect_signals(int value, pid_t from) {
  struct signalfd_siginfo info;
  CHECK_EQUAL(read(g_signals, &info, sizeof info), sizeof info);
  CHECK_EQUAL(info.ssi_signo, SIGUSR1);
  CHECK_EQUAL(info.ssi_int, value);
  CHECK_EQUAL(info.ssi_pid, from);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(read(g_signals, &info, sizeof info), sizeof info);
    CHECK_EQUAL(info.ssi_signo, SIGRTMIN);
    CHECK_EQUAL(info.ssi_int, value + i);
  }
  CHECK(read(g_signals, &info, sizeof info) == -1 && errno == EAGAIN);
}

static void queue(pid_t to, int value) {
  CHECK_EQUAL(sigqueue(to, SIGUSR1, (union sigval){.sival_int = value}), 0);
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(sigqueue(to, SIGRTMIN, (union sigval){.sival_int = value + i}), 0);
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  expect_signals(100, g_root_pid);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_root_pid = getpid();
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigaddset(&mask, SIGRTMIN);
  CHECK_EQUAL(sigprocmask(SIG_BLOCK, &mask, NULL), 0);
  g_signals = signalfd(-1, &mask, SFD_NONBLOCK);
  CHECK(g_signals >= 0);
  pid_t below = start_child(child, NULL);
  queue(below, 100);
  queue(getpid(), 200);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_signals, below, g_signals, true);
  release(1);
  expect_exit(below, 1);
  expect_signals(200, g_root_pid);
  target_pass();
}
