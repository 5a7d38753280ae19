// flock: who took it, which fdinfo says; one held through an open file that two processes share, shared ones of two
// holders, given back when they end.
#include <sys/file.h>

#include "target.h"

static int g_shared, g_common;

static int child(void* unused) {
  (void)unused;
  int own = open("common", O_RDWR);
  CHECK_EQUAL(flock(own, LOCK_SH), 0);
  child_wait(1);
  return 1;
}

static void expect_locked(const char* name, int how, bool locked) {
  int fd = open(name, O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  int done = flock(fd, how | LOCK_NB);
  if ((done != 0) != locked) target_fail("%s is %s", name, locked ? "not locked" : "locked");
  if (done != 0) CHECK_EQUAL(errno, EWOULDBLOCK);
  CHECK_EQUAL(close(fd), 0);
}

/// As fdinfo shows the lock of a descriptor.
static int owner_of_lock(int fd) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  FILE* file = fopen(path, "r");
  CHECK(file != NULL);
  int owner = -1;
  while (fgets(line, sizeof line, file) != NULL) sscanf(line, "lock: %*d: FLOCK %*s %*s %d", &owner);
  CHECK_EQUAL(fclose(file), 0);
  return owner;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = open("shared", O_CREAT | O_RDWR, 0600);
  g_common = open("common", O_CREAT | O_RDWR, 0600);
  int free_file = open("free", O_CREAT | O_RDWR, 0600);
  CHECK(g_shared >= 0 && g_common >= 0 && free_file >= 0);
  CHECK(flock(g_shared, LOCK_EX) == 0 && flock(g_common, LOCK_SH) == 0);
  CHECK(flock(free_file, LOCK_EX) == 0 && flock(free_file, LOCK_UN) == 0);
  pid_t below = start_child(child, NULL);
  CHECK_EQUAL(owner_of_lock(g_shared), getpid());
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(owner_of_lock(g_shared), getpid());
  expect_locked("shared", LOCK_SH, true);
  expect_locked("common", LOCK_EX, true);
  expect_locked("common", LOCK_SH, false);
  expect_locked("free", LOCK_EX, false);
  CHECK_EQUAL(close(g_shared), 0);
  expect_locked("shared", LOCK_SH, true);  // the child has it still
  CHECK_EQUAL(flock(g_common, LOCK_UN), 0);
  expect_locked("common", LOCK_EX, true);
  release(1);
  expect_exit(below, 1);
  expect_locked("shared", LOCK_EX, false);
  expect_locked("common", LOCK_EX, false);
  target_pass();
}
