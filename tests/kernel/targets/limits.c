// Resource limits, lowered ones among them.
#include <sys/resource.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct rlimit before[RLIM_NLIMITS], after;
  const struct rlimit files = {333, 444}, core = {0, 4096}, stack = {4 << 20, 16 << 20}, queue = {1000, 2000};
  CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &files), 0);
  CHECK_EQUAL(setrlimit(RLIMIT_CORE, &core), 0);
  CHECK_EQUAL(setrlimit(RLIMIT_STACK, &stack), 0);
  CHECK_EQUAL(setrlimit(RLIMIT_SIGPENDING, &queue), 0);
  for (int i = 0; i < (int)RLIM_NLIMITS; ++i) CHECK_EQUAL(getrlimit((__rlimit_resource_t)i, &before[i]), 0);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < (int)RLIM_NLIMITS; ++i) {
    CHECK_EQUAL(getrlimit((__rlimit_resource_t)i, &after), 0);
    if (after.rlim_cur != before[i].rlim_cur || after.rlim_max != before[i].rlim_max)
      target_fail("limit %d is %lld/%lld, not %lld/%lld", i, (long long)after.rlim_cur, (long long)after.rlim_max,
                  (long long)before[i].rlim_cur, (long long)before[i].rlim_max);
  }
  target_pass();
}
