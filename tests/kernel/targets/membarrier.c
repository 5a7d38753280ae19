// What a process has registered its memory for with membarrier(2) stays registered; what it has not, stays refused.
#include <linux/membarrier.h>

#include "target.h"

static long barrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0) target_skip("membarrier: %s", strerror(errno));
  enum { kGetRegistrations = 1 << 9 };
  if (barrier(kGetRegistrations) < 0) target_skip("this kernel does not tell registrations (6.3 does)");
  CHECK_EQUAL(barrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED), 0);
  const long registered = barrier(kGetRegistrations);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED), 0);
  CHECK_EQUAL(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE), -1);
  CHECK_EQUAL(barrier(kGetRegistrations), registered);
  target_pass();
}
