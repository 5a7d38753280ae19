// seccomp in one process of a tree: a child with two threads would be killed for calls that ckpt has it make; its
// parent has no filter.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "target.h"

enum { kRefused = SYS_getpriority };

/// Answers 201 to one call, and kills the process for calls that only somebody who takes or rebuilds it would have it
/// make.
static void forbid_much(void) {
  static const long kDeadly[] = {SYS_sigaltstack,      SYS_setresuid,     SYS_setresgid,     SYS_capset,
                                 SYS_sched_setattr,    SYS_timer_gettime, SYS_getitimer,     SYS_setitimer,
                                 SYS_process_vm_readv, SYS_mremap,        SYS_get_mempolicy, SYS_fork,
                                 SYS_userfaultfd,      SYS_prlimit64,     SYS_chdir,         SYS_setgroups,
                                 SYS_rt_sigqueueinfo};
  enum { kCount = sizeof kDeadly / sizeof kDeadly[0] };
  struct sock_filter program[2 * kCount + 4];
  int n = 0;
  program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < kCount; ++i) {
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)kDeadly[i], 0, 1);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  }
  program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRefused, 0, 1);
  program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 201);
  program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog all = {.len = (unsigned short)n, .filter = program};
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  CHECK_EQUAL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all), 0);
}

static int refusal(void) { return syscall(kRefused, 0, 0) == -1 ? errno : 0; }

static volatile int g_check, g_result;

static void* run_thread(void* unused) {
  while (g_check == 0) sleep_ms(2);
  g_result = refusal();
  while (getpid() != 0) pause();
  return unused;
}

static int child(void* unused) {
  (void)unused;
  start_thread(run_thread, NULL);
  forbid_much();
  child_wait(1);
  CHECK_EQUAL(refusal(), 201);
  g_check = 1;
  for (int i = 0; i < 2000 && g_result == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_result, 201);
  return 7;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(uint32_t){SECCOMP_RET_KILL_PROCESS}) != 0)
    target_skip("no seccomp: %s", strerror(errno));
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  CHECK(refusal() != 201);
  CHECK_EQUAL(prctl(PR_GET_SECCOMP), 0);
  release(1);
  expect_exit(below, 7);
  target_pass();
}
