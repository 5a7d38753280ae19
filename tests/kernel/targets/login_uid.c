// The user as which a session was begun, for the audit log; a child may have another.
#include "target.h"

static bool set_login_uid(const char* text) {
  int fd = open("/proc/self/loginuid", O_WRONLY);
  bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0) close(fd);
  return done;
}

static void expect_login_uid(const char* text) {
  char found[32] = "";
  int fd = open("/proc/self/loginuid", O_RDONLY);
  CHECK(fd >= 0 && read(fd, found, sizeof found - 1) > 0);
  close(fd);
  if (strcmp(found, text) != 0) target_fail("the login uid is %s, not %s", found, text);
}

static int other(void* unused) {
  (void)unused;
  CHECK(set_login_uid("7"));
  child_wait(1);
  expect_login_uid("7");
  return 3;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!set_login_uid("5")) target_skip("login uids cannot be set here: %s", strerror(errno));
  if (!set_login_uid("6")) target_skip("login uids cannot be changed here: %s", strerror(errno));
  pid_t child = start_child(other, NULL);
  target_ready();
  target_wait(NULL);
  expect_login_uid("6");
  release(1);
  expect_exit(child, 3);
  target_pass();
}
