// mlockall(MCL_FUTURE), with MCL_ONFAULT and, in a child, without: memory that is mapped afterwards is locked.
#include "target.h"

static bool new_memory_is(const char* wanted, const char* unwanted) {
  char permissions[5], flags[256];
  char* fresh = mmap(NULL, 8 * PAGE_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(fresh != MAP_FAILED);
  mapping_flags(fresh, permissions, flags, sizeof flags);
  CHECK_EQUAL(munmap(fresh, 8 * PAGE_SIZE), 0);
  return strstr(flags, wanted) != NULL && (unwanted == NULL || strstr(flags, unwanted) == NULL);
}

static int child(void* unused) {
  (void)unused;
  CHECK_EQUAL(mlockall(MCL_FUTURE), 0);
  CHECK(new_memory_is(" lo ", " lf "));
  child_wait(1);
  CHECK(new_memory_is(" lo ", " lf "));
  return 0;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pid_t pid = start_child(child, NULL);
  if (mlockall(MCL_FUTURE | MCL_ONFAULT) != 0) target_skip("mlockall: %s", strerror(errno));
  CHECK(new_memory_is(" lf ", NULL));
  target_ready();
  target_wait(NULL);
  CHECK(new_memory_is(" lo ", NULL));
  CHECK(new_memory_is(" lf ", NULL));
  release(1);
  expect_exit(pid, 0);
  target_pass();
}
