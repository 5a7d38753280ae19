// Locks of open files (OFD): held by one that two processes share, against another of the same process.
#include "target.h"

static int g_fd;

static int change(int fd, int command, short type, off_t start, off_t length) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, &lock);
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(change(g_fd, F_OFD_SETLK, F_UNLCK, 10, 10), 0);  // it is one open file: also the child may
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_fd = open("locked", O_CREAT | O_RDWR, 0600);
  int other = open("locked", O_RDWR);
  CHECK_EQUAL(change(g_fd, F_OFD_SETLK, F_WRLCK, 0, 30), 0);
  CHECK_EQUAL(change(other, F_OFD_SETLK, F_RDLCK, 50, 0), 0);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_fd, below, g_fd, true);
  CHECK(change(other, F_OFD_SETLK, F_RDLCK, 15, 1) == -1 && (errno == EAGAIN || errno == EACCES));
  CHECK(change(g_fd, F_OFD_SETLK, F_WRLCK, 1000, 1) == -1 && (errno == EAGAIN || errno == EACCES));
  CHECK_EQUAL(change(g_fd, F_OFD_SETLK, F_RDLCK, 1000, 1), 0);
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(change(other, F_OFD_SETLK, F_RDLCK, 15, 1), 0);
  CHECK(change(other, F_OFD_SETLK, F_RDLCK, 25, 1) == -1);
  target_pass();
}
