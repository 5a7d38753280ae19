// Leases: one for reading, one for writing with a signal of its own, which must be told of somebody who opens the file.
#include "target.h"

enum { kSignal = 36 };

static int open_new(const char* name, int flags) {
  int fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && close(fd) == 0);
  fd = open(name, flags | O_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

/// Wants the file, and does not wait for it.
static int opener(void* name) {
  child_ready();
  await_release(1);
  CHECK(open(name, O_RDONLY | O_NONBLOCK) == -1);
  CHECK_EQUAL(errno, EWOULDBLOCK);
  return 7;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int reading = open_new("read", O_RDONLY), writing = open_new("write", O_RDWR);
  if (fcntl(reading, F_SETLEASE, F_RDLCK) != 0) target_skip("no leases here: %s", strerror(errno));
  CHECK_EQUAL(fcntl(writing, F_SETLEASE, F_WRLCK), 0);
  CHECK_EQUAL(fcntl(writing, F_SETSIG, kSignal), 0);
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, kSignal);
  CHECK_EQUAL(sigprocmask(SIG_BLOCK, &told, NULL), 0);
  pid_t child = start_child(opener, "write");
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(fcntl(reading, F_GETLEASE), F_RDLCK);
  CHECK_EQUAL(fcntl(writing, F_GETLEASE), F_WRLCK);
  siginfo_t info = {0};
  struct timespec none = {0, 0}, while_it_opens = {20, 0};
  CHECK(sigtimedwait(&told, &info, &none) == -1);  // nobody has opened it
  release(1);
  CHECK_EQUAL(sigtimedwait(&told, &info, &while_it_opens), kSignal);
  CHECK_EQUAL(info.si_fd, writing);
  expect_exit(child, 7);
  CHECK_EQUAL(fcntl(writing, F_SETLEASE, F_UNLCK), 0);
  int again = open("write", O_RDONLY | O_NONBLOCK);
  CHECK(again >= 0);
  target_pass();
}
