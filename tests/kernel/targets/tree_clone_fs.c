// Two processes with one current folder and umask (CLONE_FS): what one changes the other has.
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/stat.h>

#include "target.h"

static int sharer(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(umask(031), 027);
  CHECK_EQUAL(chdir("below"), 0);
  return 1;
}

static int copier(void* unused) {
  (void)unused;
  child_wait(2);
  CHECK_EQUAL(umask(0), 027);
  CHECK_EQUAL(access("below", F_OK), 0);
  return 2;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(mkdir("below", 0700), 0);
  umask(027);
  pid_t apart = start_child(copier, NULL);
  pid_t together = start_clone(CLONE_FS | SIGCHLD, sharer, NULL);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(syscall(SYS_kcmp, getpid(), together, KCMP_FS, 0, 0), 0);
  CHECK(syscall(SYS_kcmp, getpid(), apart, KCMP_FS, 0, 0) > 0);
  release(1);
  expect_exit(together, 1);
  CHECK_EQUAL(access("below", F_OK), -1);
  CHECK_EQUAL(access("../below", F_OK), 0);
  CHECK_EQUAL(umask(022), 031);
  release(2);
  expect_exit(apart, 2);
  target_pass();
}
