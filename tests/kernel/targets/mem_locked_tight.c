// mlock by a process without CAP_IPC_LOCK: its memory counts against RLIMIT_MEMLOCK.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "target.h"

enum { kPages = 64 };

static void drop_lock_capability(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  (void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
  CHECK_EQUAL(syscall(SYS_capget, &header, data), 0);
  const uint32_t bit = 1u << CAP_IPC_LOCK;
  data[0].effective &= ~bit, data[0].permitted &= ~bit, data[0].inheritable &= ~bit;
  CHECK_EQUAL(syscall(SYS_capset, &header, data), 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct rlimit limit = {kPages * PAGE_SIZE, kPages * PAGE_SIZE}, found;
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) target_skip("RLIMIT_MEMLOCK: %s", strerror(errno));
  drop_lock_capability();
  char *locked = (char*)map_pages((kPages + 2) * PAGE_SIZE) + PAGE_SIZE, size[64];
  CHECK_EQUAL(mlock(locked, kPages * PAGE_SIZE), 0);
  fill_words(locked, kPages * PAGE_SIZE, 83);
  target_ready();
  target_wait(NULL);
  CHECK(proc_field("/proc/self/status", "VmLck", size, sizeof size));
  CHECK_EQUAL(atoi(size), kPages * 4);
  CHECK_EQUAL(getrlimit(RLIMIT_MEMLOCK, &found), 0);
  CHECK(found.rlim_cur == limit.rlim_cur && found.rlim_max == limit.rlim_max);
  CHECK_EQUAL(first_wrong(locked, kPages * PAGE_SIZE, 83), -1);
  target_pass();
}
