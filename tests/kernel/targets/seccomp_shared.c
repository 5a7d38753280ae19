// Threads that share one seccomp filter: another one can be given to all of them at once only as long as they do.
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

static int outcome(long number) { return syscall(number, 0, 0) == -1 ? errno : 0; }

static volatile int g_check, g_right;

static void* run_thread(void* unused) {
  while (g_check == 0) sleep_ms(2);
  if (outcome(SYS_getpriority) == 201 && outcome(SYS_ptrace) == 202) __atomic_add_fetch(&g_right, 1, __ATOMIC_SEQ_CST);
  while (getpid() != 0) pause();
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  enum { kThreads = 3 };
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  for (int i = 0; i < kThreads; ++i) start_thread(run_thread, NULL);
  if (install(SYS_getpriority, 201, SECCOMP_FILTER_FLAG_TSYNC) != 0) target_skip("no seccomp: %s", strerror(errno));
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(install(SYS_ptrace, 202, SECCOMP_FILTER_FLAG_TSYNC), 0);
  CHECK_EQUAL(outcome(SYS_ptrace), 202);
  g_check = 1;
  for (int i = 0; i < 2000 && g_right < kThreads; ++i) sleep_ms(1);
  CHECK_EQUAL(g_right, kThreads);
  target_pass();
}
