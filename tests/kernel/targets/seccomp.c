// seccomp: a filter that both threads have, and one of each alone. That they are there shows by what they refuse.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "target.h"

static int install(long number, int error, unsigned flags) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog all = {.len = 4, .filter = program};
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &all);
}

/// 0, or the errno of a call that takes no argument worth having.
static int outcome(long number) { return syscall(number, 0, 0) == -1 ? errno : 0; }

static volatile int g_thread_ready, g_check, g_thread_result;

static void* run_thread(void* unused) {
  if (install(SYS_sysinfo, 203, 0) != 0) return unused;
  g_thread_ready = 1;
  while (g_check == 0) sleep_ms(2);
  g_thread_result = outcome(SYS_getpriority) == 201 && outcome(SYS_sysinfo) == 203 ? 1 : 2;
  for (;;) pause();
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  if (install(SYS_getpriority, 201, 0) != 0) target_skip("no seccomp: %s", strerror(errno));
  start_thread(run_thread, NULL);
  while (g_thread_ready == 0) sleep_ms(1);
  CHECK_EQUAL(install(SYS_ptrace, 202, SECCOMP_FILTER_FLAG_LOG), 0);
  CHECK_EQUAL(prctl(PR_GET_SECCOMP), SECCOMP_MODE_FILTER);
  char filters[16];
  CHECK(proc_field("/proc/self/status", "Seccomp_filters", filters, sizeof filters));
  CHECK_EQUAL(atoi(filters), 2);
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(outcome(SYS_getpriority), 201);
  CHECK_EQUAL(outcome(SYS_ptrace), 202);
  CHECK(outcome(SYS_sysinfo) != 203);
  CHECK(proc_field("/proc/self/status", "Seccomp_filters", filters, sizeof filters));
  CHECK_EQUAL(atoi(filters), 2);
  CHECK_EQUAL(prctl(PR_GET_SECCOMP), SECCOMP_MODE_FILTER);
  CHECK_EQUAL(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
  g_check = 1;
  for (int i = 0; i < 2000 && g_thread_result == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_thread_result, 1);
  target_pass();
}
