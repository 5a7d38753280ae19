// Holds one thing, named by argv[2], that an image does not cover and that shows only while the process stands still.
// It must be refused by name and find the process as it was.
#include <asm/ldt.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <sys/prctl.h>

#include "target.h"

static volatile int g_holds;
static volatile char g_selector;  // 0: calls go to the kernel

static void hold_dispatch(void) {
  enum { kSetDispatch = 59, kOn = 1 };
  if (prctl(kSetDispatch, kOn, 0, 0, &g_selector) != 0) target_skip("no dispatch: %s", strerror(errno));
}
static void hold_mdwe(void) {
  enum { kSetMdwe = 65, kRefuseExecGain = 1 };
  if (prctl(kSetMdwe, kRefuseExecGain, 0, 0, 0) != 0) target_skip("no PR_SET_MDWE: %s", strerror(errno));
}
static void hold_segments(void) {
  struct user_desc entry = {.entry_number = 3, .base_addr = 0x1000, .limit = 16, .seg_32bit = 1, .useable = 1};
  if (syscall(SYS_modify_ldt, 1, &entry, sizeof entry) != 0) target_skip("no modify_ldt: %s", strerror(errno));
}
static void wait_in_kernel(void) {
  int ends[2];
  char byte;
  CHECK_EQUAL(pipe(ends), 0);
  g_holds = 1;
  CHECK(read(ends[0], &byte, 1) < 0);
}
static void* lose_clock(void* unused) {
  CHECK_EQUAL(prctl(PR_SET_TSC, PR_TSC_SIGSEGV), 0);
  wait_in_kernel();
  return unused;
}
static void hold_clock(void) { start_thread(lose_clock, NULL); }
static void* lose_cpuid(void* unused) {
  enum { kSetCpuid = 0x1012 };
  if (syscall(SYS_arch_prctl, kSetCpuid, 0) != 0) target_skip("cpuid is not trapped here: %s", strerror(errno));
  wait_in_kernel();
  return unused;
}
static void hold_cpuid(void) { start_thread(lose_cpuid, NULL); }
static void* make_timer(void* unused) {
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGURG};
  event._sigev_un._tid = (int)syscall(SYS_gettid);
  timer_t timer;
  CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  return unused;
}
static void hold_timer(void) {
  CHECK_EQUAL(pthread_join(start_thread(make_timer, NULL), NULL), 0);
  g_holds = 1;
}
static void* leave_folder(void* unused) {
  CHECK_EQUAL(unshare(CLONE_FS), 0);
  wait_in_kernel();
  return unused;
}
static void hold_folder(void) { start_thread(leave_folder, NULL); }
static void* leave_table(void* unused) {
  CHECK_EQUAL(unshare(CLONE_FILES), 0);
  wait_in_kernel();
  return unused;
}
static void hold_table(void) { start_thread(leave_table, NULL); }

static void* use_ports(void* unused) {
  if (syscall(SYS_ioperm, 0x80, 1, 1) != 0) target_skip("no I/O ports: %s", strerror(errno));
  wait_in_kernel();
  return unused;
}
static void hold_ports(void) { start_thread(use_ports, NULL); }
static void enter_domain(void) {
  const uint64_t handled = 1;  // LANDLOCK_ACCESS_FS_EXECUTE
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  long rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
  if (rules < 0) target_skip("no Landlock: %s", strerror(errno));
  CHECK_EQUAL(syscall(SYS_landlock_restrict_self, rules, 0), 0);
  CHECK_EQUAL(close((int)rules), 0);
}
static void* restrict_thread(void* unused) {
  enter_domain();
  wait_in_kernel();
  return unused;
}
static void hold_landlock_thread(void) { start_thread(restrict_thread, NULL); }
static void hold_landlock_user(void) {
  if (setresgid(10007, 10007, 10007) != 0 || setresuid(10001, 10001, 10001) != 0) target_skip("not root");
  CHECK_EQUAL(prctl(PR_SET_DUMPABLE, 1), 0);
  enter_domain();
}

static void add_key(int keyring) {
  if (syscall(SYS_add_key, "user", "ckpt-test-own-key", "secret", 6, keyring) < 0)
    target_skip("no keys: %s", strerror(errno));
}
static void hold_process_key(void) { add_key(KEY_SPEC_PROCESS_KEYRING); }
static void* keep_key(void* unused) {
  add_key(KEY_SPEC_THREAD_KEYRING);
  wait_in_kernel();
  return unused;
}
static void hold_thread_key(void) { start_thread(keep_key, NULL); }

static const struct Thing {
  const char* name;
  void (*hold)(void);
  bool by_thread;
} kThings[] = {
    {"dispatch", hold_dispatch, false}, {"segments", hold_segments, false}, {"clock", hold_clock, true},
    {"cpuid", hold_cpuid, true},        {"timer", hold_timer, false},       {"folder", hold_folder, true},
    {"table", hold_table, true},        {"mdwe", hold_mdwe, false},         {"landlock", enter_domain, false},
    {"landlock_thread", hold_landlock_thread, true}, {"landlock_user", hold_landlock_user, false},
    {"ports", hold_ports, true},
    {"process_key", hold_process_key, false}, {"thread_key", hold_thread_key, true},
};

int main(int argc, char** argv) {
  target_init(argc, argv);
  const struct Thing* thing = NULL;
  for (size_t i = 0; i < sizeof kThings / sizeof kThings[0]; ++i) {
    if (strcmp(argc > 2 ? argv[2] : "", kThings[i].name) == 0) thing = &kThings[i];
  }
  if (thing == NULL) target_fail("there is no %s", argc > 2 ? argv[2] : "name");
  thing->hold();
  while (thing->by_thread && !g_holds) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  target_pass();
}
