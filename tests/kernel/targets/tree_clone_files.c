// Two processes with one descriptor table (CLONE_FILES), and one with a copy: what one opens the other has.
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/stat.h>

#include "target.h"

static int g_held;

static int sharer(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(dup2(g_held, 77), 77);
  CHECK_EQUAL(close(g_held), 0);
  child_ready();
  return 1;
}

static int copier(void* unused) {
  (void)unused;
  child_wait(2);
  CHECK(fcntl(77, F_GETFD) == -1 && errno == EBADF);
  CHECK(fcntl(g_held, F_GETFD) >= 0);
  return 2;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_held = open("held", O_CREAT | O_RDWR, 0600);
  CHECK(g_held >= 0);
  pid_t apart = start_child(copier, NULL);
  pid_t together = start_clone(CLONE_FILES | SIGCHLD, sharer, NULL);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(syscall(SYS_kcmp, getpid(), together, KCMP_FILES, 0, 0), 0);
  CHECK(syscall(SYS_kcmp, getpid(), apart, KCMP_FILES, 0, 0) > 0);
  CHECK(syscall(SYS_kcmp, getpid(), together, KCMP_VM, 0, 0) > 0);
  expect_same_file(g_held, apart, g_held, true);
  release(1);
  expect_exit(together, 1);
  struct stat about, wanted;
  CHECK(fstat(77, &about) == 0 && stat("held", &wanted) == 0);
  CHECK_EQUAL(about.st_ino, wanted.st_ino);
  CHECK(fcntl(g_held, F_GETFD) == -1 && errno == EBADF);
  release(2);
  expect_exit(apart, 2);
  expect_childless();
  target_pass();
}
