// Flags of open files: append from two processes, direct, synchronous, no access time, and their changes by fcntl.
#include "target.h"

static int g_append;

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(write(g_append, "child ", 6), 6);
  return 1;
}

static int opened(const char* name, int flags) {
  int fd = open(name, O_CREAT | flags, 0600);
  if (fd < 0) target_fail("%s: %s", name, strerror(errno));
  return fd;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const int kept = O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_NOATIME | O_DIRECT;
  g_append = opened("append", O_WRONLY | O_APPEND);
  CHECK_EQUAL(write(g_append, "start ", 6), 6);
  int turned = opened("turned", O_RDWR | O_APPEND), sync = opened("sync", O_RDWR | O_SYNC),
      dsync = opened("dsync", O_WRONLY | O_DSYNC), noatime = opened("noatime", O_RDWR | O_NOATIME);
  CHECK_EQUAL(fcntl(turned, F_SETFL, O_NONBLOCK), 0);
  int direct = open("direct", O_CREAT | O_RDWR | O_DIRECT, 0600);
  int truncated = opened("truncated", O_RDWR | O_TRUNC);
  CHECK_EQUAL(write(truncated, "kept", 4), 4);
  int exclusive = opened("exclusive", O_RDWR | O_EXCL);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(fcntl(g_append, F_GETFL) & kept, O_WRONLY | O_APPEND);
  CHECK_EQUAL(fcntl(turned, F_GETFL) & kept, O_RDWR | O_NONBLOCK);
  CHECK_EQUAL(fcntl(sync, F_GETFL) & kept, O_RDWR | O_SYNC);
  CHECK_EQUAL(fcntl(dsync, F_GETFL) & kept, O_WRONLY | O_DSYNC);
  CHECK_EQUAL(fcntl(noatime, F_GETFL) & kept, O_RDWR | O_NOATIME);
  CHECK_EQUAL(fcntl(exclusive, F_GETFL) & kept, O_RDWR);
  if (direct >= 0) CHECK_EQUAL(fcntl(direct, F_GETFL) & kept, O_RDWR | O_DIRECT);
  char text[16] = "";
  CHECK_EQUAL(pread(truncated, text, sizeof text, 0), 4);
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(write(g_append, "root ", 5), 5);
  int again = open("append", O_RDONLY);
  off_t size = lseek(again, 0, SEEK_END);
  CHECK_EQUAL(pread(again, text, 11, size - 11), 11);
  CHECK(strcmp(text, "child root ") == 0);
  CHECK_EQUAL(lseek(g_append, 0, SEEK_CUR), size);
  target_pass();
}
