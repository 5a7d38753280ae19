// Who gets the signal of an open file: F_SETOWN of a process, a group and a thread, F_SETSIG, O_ASYNC; and it comes.
#include <sys/wait.h>

#include "target.h"

static volatile sig_atomic_t g_io, g_own;
static void on_signal(int number, siginfo_t* info, void* context) {
  (void)context;
  if (number == SIGIO) ++g_io;
  if (number == SIGRTMIN + 3) g_own = info->si_fd;
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  return 1;
}

static void set_owner(int fd, int type, pid_t pid) {
  struct f_owner_ex owner = {type, pid};
  CHECK_EQUAL(fcntl(fd, F_SETOWN_EX, &owner), 0);
}

static void expect_owner(int fd, int type, pid_t pid) {
  struct f_owner_ex owner;
  CHECK_EQUAL(fcntl(fd, F_GETOWN_EX, &owner), 0);
  CHECK_EQUAL(owner.type, type);
  CHECK_EQUAL(owner.pid, pid);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  CHECK(sigaction(SIGIO, &action, NULL) == 0 && sigaction(SIGRTMIN + 3, &action, NULL) == 0);
  int plain[2], own[2], other[2], group[2];
  CHECK(pipe(plain) == 0 && pipe(own) == 0 && pipe(other) == 0 && pipe(group) == 0);
  pid_t below = start_child(child, NULL);
  CHECK_EQUAL(fcntl(plain[0], F_SETOWN, getpid()), 0);
  CHECK_EQUAL(fcntl(plain[0], F_SETFL, O_ASYNC), 0);
  set_owner(own[0], F_OWNER_TID, get_tid());
  CHECK_EQUAL(fcntl(own[0], F_SETSIG, SIGRTMIN + 3), 0);
  CHECK_EQUAL(fcntl(own[0], F_SETFL, O_ASYNC | O_NONBLOCK), 0);
  set_owner(other[0], F_OWNER_PID, below);
  CHECK_EQUAL(fcntl(other[0], F_SETSIG, SIGKILL), 0);
  CHECK_EQUAL(fcntl(other[0], F_SETFL, O_ASYNC), 0);
  set_owner(group[0], F_OWNER_PGRP, getpgrp());
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_io + g_own, 0);
  CHECK_EQUAL(fcntl(plain[0], F_GETOWN), getpid());
  CHECK_EQUAL(fcntl(plain[0], F_GETSIG), 0);
  expect_owner(own[0], F_OWNER_TID, get_tid());
  CHECK_EQUAL(fcntl(own[0], F_GETSIG), SIGRTMIN + 3);
  expect_owner(other[0], F_OWNER_PID, below);
  expect_owner(group[0], F_OWNER_PGRP, getpgrp());
  CHECK_EQUAL(fcntl(group[1], F_GETOWN), 0);
  CHECK_EQUAL(fcntl(own[0], F_GETFL) & (O_ASYNC | O_NONBLOCK), O_ASYNC | O_NONBLOCK);
  CHECK_EQUAL(write(plain[1], "x", 1), 1);
  CHECK_EQUAL(write(own[1], "x", 1), 1);
  CHECK_EQUAL(g_io, 1);
  CHECK_EQUAL(g_own, own[0]);
  CHECK_EQUAL(waitpid(below, NULL, WNOHANG), 0);
  CHECK_EQUAL(write(other[1], "x", 1), 1);
  expect_signal(below, SIGKILL);
  target_pass();
}
