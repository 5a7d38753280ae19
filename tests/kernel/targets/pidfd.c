// pidfds of the process itself, of a child, of a zombie, and of a child that was waited for.
#include <poll.h>
#include <sys/wait.h>

#include "target.h"

static int open_pidfd(pid_t pid, unsigned flags) {
  int fd = (int)syscall(SYS_pidfd_open, pid, flags);
  if (fd < 0 && errno == ENOSYS) target_skip("no pidfd_open");
  CHECK(fd >= 0);
  return fd;
}

static short poll_now(int fd) {
  struct pollfd poll_one = {.fd = fd, .events = POLLIN};
  CHECK(poll(&poll_one, 1, 0) >= 0);
  return poll_one.revents;
}

static int send_to(int fd, int signo) { return (int)syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  pid_t children[3];
  for (int i = 0; i < 3; ++i) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] == 0) {
      if (i > 0) _exit(40 + i);
      for (;;) pause();
    }
  }
  int own = open_pidfd(getpid(), 0), alive = open_pidfd(children[0], O_NONBLOCK), zombie = open_pidfd(children[1], 0),
      gone = open_pidfd(children[2], 0);
  siginfo_t info;
  CHECK_EQUAL(waitid(P_PID, (id_t)children[1], &info, WEXITED | WNOWAIT), 0);
  CHECK_EQUAL(waitpid(children[2], NULL, 0), children[2]);
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(send_to(own, 0), 0);
  CHECK_EQUAL(poll_now(own), 0);
  CHECK_EQUAL(poll_now(alive), 0);
  CHECK_EQUAL(poll_now(zombie) & POLLIN, POLLIN);
  CHECK_EQUAL(poll_now(gone) & POLLIN, POLLIN);
  CHECK(send_to(gone, 0) == -1 && errno == ESRCH);
  CHECK_EQUAL(waitid(P_PIDFD, (id_t)zombie, &info, WEXITED), 0);
  CHECK_EQUAL(info.si_pid, children[1]);
  CHECK_EQUAL(info.si_status, 41);
  CHECK(waitid(P_PIDFD, (id_t)alive, &info, WEXITED) == -1 && errno == EAGAIN);
  CHECK_EQUAL(send_to(alive, SIGKILL), 0);
  for (int i = 0; i < 1000 && (poll_now(alive) & POLLIN) == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(waitid(P_PIDFD, (id_t)alive, &info, WEXITED), 0);
  CHECK_EQUAL(info.si_pid, children[0]);
  CHECK_EQUAL(info.si_status, SIGKILL);
  CHECK_EQUAL(fcntl(own, F_GETFD), FD_CLOEXEC);
  target_pass();
}
