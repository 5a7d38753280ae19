// A deleted folder: the current one of a child, and one that is open.
#include <sys/stat.h>

#include "target.h"

static void expect_gone(const char* link_path) {
  char link[4096] = "";
  CHECK(readlink(link_path, link, sizeof link - 1) > 0);
  size_t length = strlen(link);
  if (length < 14 || strcmp(link + length - 14, "gone (deleted)") != 0)
    target_fail("%s leads to '%s'", link_path, link);
}

static int child(void* unused) {
  (void)unused;
  CHECK_EQUAL(chdir("gone"), 0);
  child_wait(1);
  char path[4096];
  CHECK(getcwd(path, sizeof path) == NULL && errno == ENOENT);
  expect_gone("/proc/self/cwd");
  CHECK(open("new", O_CREAT | O_RDWR, 0600) == -1 && errno == ENOENT);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(mkdir("gone", 0750), 0);
  int fd = open("gone", O_RDONLY | O_DIRECTORY);
  CHECK(fd >= 0 && dup2(fd, 50) == 50);
  pid_t below = start_child(child, NULL);
  CHECK_EQUAL(rmdir("gone"), 0);
  target_ready();
  target_wait(NULL);
  struct stat about;
  CHECK_EQUAL(fstat(50, &about), 0);
  CHECK(S_ISDIR(about.st_mode) && (about.st_mode & 07777) == 0750);
  CHECK_EQUAL(about.st_nlink, 0);
  expect_gone("/proc/self/fd/50");
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(access("gone", F_OK), -1);
  target_pass();
}
