// flock, POSIX and OFD locks, shared and exclusive, on ranges and to the end; a child that waits for one of them, and a
// descriptor shared with it.
#include <sys/file.h>
#include <sys/wait.h>

#include "target.h"

static int open_file(const char* name) {
  int fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  return fd;
}

static int lock_range(int fd, int command, short type, off_t start, off_t length) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, &range);
}

/// Who hinders a write lock of this byte; 0: nobody.
static pid_t who_holds(const char* name, off_t at) {
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  int fd = open_file(name);
  CHECK_EQUAL(fcntl(fd, F_OFD_GETLK, &range), 0);
  close(fd);
  return range.l_type == F_UNLCK ? 0 : range.l_pid;
}

/// Asks in a process of its own: closing a file gives up the POSIX locks of the process on it.
static int asked_elsewhere(const char* name, off_t at) {
  int status;
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) _exit(who_holds(name, at) == getppid() ? 1 : who_holds(name, at) == -1 ? 2 : 0);
  CHECK_EQUAL(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int exclusive = open_file("exclusive"), shared = open_file("shared"), ranges = open_file("ranges"),
      ofd = open_file("ofd");
  CHECK_EQUAL(flock(exclusive, LOCK_EX), 0);
  CHECK_EQUAL(flock(shared, LOCK_SH), 0);
  CHECK_EQUAL(lock_range(ranges, F_SETLK, F_WRLCK, 10, 10), 0);
  CHECK_EQUAL(lock_range(ranges, F_SETLK, F_RDLCK, 100, 0), 0);
  CHECK_EQUAL(lock_range(ofd, F_OFD_SETLK, F_WRLCK, 5, 1), 0);
  pid_t waiter = fork();
  CHECK(waiter >= 0);
  if (waiter == 0) {
    int own = open_file("exclusive");
    _exit(flock(own, LOCK_EX) == 0 ? 33 : 34);
  }
  wait_blocked_in(waiter, SYS_flock);
  target_ready();
  target_wait(NULL);

  int other = open_file("exclusive");
  CHECK(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
  int also = open_file("shared");
  CHECK(flock(also, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
  CHECK_EQUAL(flock(also, LOCK_SH | LOCK_NB), 0);
  CHECK_EQUAL(asked_elsewhere("ranges", 9), 0);
  CHECK_EQUAL(asked_elsewhere("ranges", 10), 1);
  CHECK_EQUAL(asked_elsewhere("ranges", 19), 1);
  CHECK_EQUAL(asked_elsewhere("ranges", 20), 0);
  CHECK_EQUAL(asked_elsewhere("ranges", 1 << 30), 1);
  CHECK_EQUAL(asked_elsewhere("ofd", 4), 0);
  CHECK_EQUAL(asked_elsewhere("ofd", 5), 2);
  CHECK_EQUAL(waitpid(waiter, NULL, WNOHANG), 0);
  CHECK_EQUAL(flock(exclusive, LOCK_UN), 0);
  int status;
  CHECK_EQUAL(waitpid(waiter, &status, 0), waiter);
  CHECK(WIFEXITED(status));
  CHECK_EQUAL(WEXITSTATUS(status), 33);
  CHECK_EQUAL(lock_range(ranges, F_SETLK, F_UNLCK, 0, 0), 0);
  CHECK_EQUAL(asked_elsewhere("ranges", 10), 0);
  target_pass();
}
