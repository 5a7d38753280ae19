// mlock and mlock2 with MLOCK_ONFAULT.
#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  char *locked = map_pages(34 * PAGE_SIZE), *on_fault = map_pages(34 * PAGE_SIZE);
  locked += PAGE_SIZE, on_fault += PAGE_SIZE;
  if (mlock(locked, 32 * PAGE_SIZE) != 0) target_skip("mlock: %s", strerror(errno));
  CHECK_EQUAL(mlock2(on_fault, 32 * PAGE_SIZE, MLOCK_ONFAULT), 0);
  fill_words(locked, 32 * PAGE_SIZE, 81);
  fill_words(on_fault, 4 * PAGE_SIZE, 82);
  target_ready();
  target_wait(NULL);
  char permissions[5], flags[256], size[64];
  mapping_flags(locked, permissions, flags, sizeof flags);
  CHECK(strstr(flags, " lo ") != NULL);
  mapping_flags(on_fault, permissions, flags, sizeof flags);
  CHECK(strstr(flags, " lo ") != NULL);
  CHECK(proc_field("/proc/self/status", "VmLck", size, sizeof size));
  CHECK_EQUAL(atoi(size), 256);
  CHECK_EQUAL(first_wrong(locked, 32 * PAGE_SIZE, 81), -1);
  CHECK_EQUAL(first_wrong(on_fault, 4 * PAGE_SIZE, 82), -1);
  target_pass();
}
