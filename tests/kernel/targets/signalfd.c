// signalfd: its mask, and signals that wait behind it.
#include <sys/signalfd.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  sigset_t mask, wide;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigaddset(&mask, SIGRTMIN + 4);
  wide = mask;
  sigaddset(&wide, SIGTERM);
  CHECK_EQUAL(sigprocmask(SIG_SETMASK, &wide, NULL), 0);
  int fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC), other = signalfd(-1, &wide, SFD_NONBLOCK);
  CHECK(fd >= 0 && other >= 0);
  union sigval value = {.sival_int = 31};
  CHECK_EQUAL(sigqueue(getpid(), SIGRTMIN + 4, value), 0);
  CHECK_EQUAL(kill(getpid(), SIGTERM), 0);
  target_ready();
  target_wait(NULL);
  struct signalfd_siginfo info;
  CHECK_EQUAL(read(fd, &info, sizeof info), sizeof info);
  CHECK_EQUAL(info.ssi_signo, SIGRTMIN + 4);
  CHECK_EQUAL(info.ssi_int, 31);
  CHECK(read(fd, &info, sizeof info) == -1 && errno == EAGAIN);  // SIGTERM is not in its mask
  CHECK_EQUAL(read(other, &info, sizeof info), sizeof info);
  CHECK_EQUAL(info.ssi_signo, SIGTERM);
  CHECK_EQUAL(kill(getpid(), SIGUSR1), 0);
  CHECK_EQUAL(read(fd, &info, sizeof info), sizeof info);
  CHECK_EQUAL(info.ssi_signo, SIGUSR1);
  CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
  target_pass();
}
