// POSIX record locks: ranges of several kinds and owners, one waited for, gone with their owner.
#include "target.h"

static int change(int fd, int command, short type, off_t start, off_t length) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, &lock);
}

static int first_child(void* unused) {
  (void)unused;
  int fd = open("locked", O_RDWR);
  CHECK_EQUAL(change(fd, F_SETLK, F_WRLCK, 100, 50), 0);
  CHECK_EQUAL(change(fd, F_SETLK, F_RDLCK, 300, 0), 0);  // to the end, wherever that is
  child_wait(1);
  return 1;
}

static int waiting_child(void* unused) {
  (void)unused;
  int fd = open("locked", O_RDWR);
  child_ready();
  CHECK_EQUAL(change(fd, F_SETLKW, F_WRLCK, 0, 10), 0);
  return 2;
}

static void expect_holder(int fd, off_t start, off_t length, short type, pid_t holder, off_t its_length) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  CHECK_EQUAL(fcntl(fd, F_GETLK, &lock), 0);
  CHECK_EQUAL(lock.l_type, type);
  if (type == F_UNLCK) return;
  CHECK_EQUAL(lock.l_pid, holder);
  CHECK_EQUAL(lock.l_len, its_length);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = open("locked", O_CREAT | O_RDWR, 0600);
  CHECK_EQUAL(ftruncate(fd, 1000), 0);
  CHECK_EQUAL(change(fd, F_SETLK, F_WRLCK, 0, 10), 0);
  CHECK_EQUAL(change(fd, F_SETLK, F_RDLCK, 20, 10), 0);
  pid_t below = start_child(first_child, NULL), waiter = start_child(waiting_child, NULL);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  expect_holder(fd, 100, 1, F_WRLCK, below, 50);
  expect_holder(fd, 149, 1, F_WRLCK, below, 50);
  expect_holder(fd, 150, 10, F_UNLCK, 0, 0);
  expect_holder(fd, 900, 1, F_RDLCK, below, 0);
  CHECK(change(fd, F_SETLK, F_WRLCK, 120, 1) == -1 && (errno == EAGAIN || errno == EACCES));
  CHECK_EQUAL(change(fd, F_SETLK, F_RDLCK, 400, 10), 0);
  release(1);
  expect_exit(below, 1);
  expect_holder(fd, 100, 0, F_UNLCK, 0, 0);
  pid_t other = fork();
  if (other == 0) {
    expect_holder(fd, 0, 5, F_WRLCK, getppid(), 10);
    expect_holder(fd, 25, 1, F_RDLCK, getppid(), 10);
    _exit(3);
  }
  expect_exit(other, 3);
  CHECK_EQUAL(change(fd, F_SETLK, F_UNLCK, 0, 10), 0);
  expect_exit(waiter, 2);
  target_pass();
}
