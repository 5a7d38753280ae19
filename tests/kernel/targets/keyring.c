// A process of a user: a key in the session keyring of whoever restores it is not at its hand. The runner has one.
#include <linux/keyctl.h>

#include "target.h"

static long find_key(void) {
  return syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", "ckpt-test-key", 0);
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK(find_key() == -1 && errno == ENOKEY);
  return 0;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (getuid() != 0) target_skip("needs root, to give it up");
  CHECK_EQUAL(setresgid(60011, 60011, 60011), 0);
  CHECK_EQUAL(setresuid(60001, 60001, 60001), 0);
  if (find_key() == -1 && errno != ENOKEY) target_skip("keyctl: %s", strerror(errno));
  pid_t pid = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  CHECK(find_key() == -1 && errno == ENOKEY);
  release(1);
  expect_exit(pid, 0);
  target_pass();
}
