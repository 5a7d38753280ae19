// Blocked and queued signals, to the thread and to the process: values, order, sender, and the masks that hold them
// back.
#include "target.h"

enum { kQueued = 5 };
static sigset_t g_mask;
static pid_t g_worker_tid;
static volatile bool g_queued, g_check, g_done;

static int queue_to(pid_t tid, int number, int value) {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = number;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = value;
  return (int)syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, number, &info);
}

static void expect(int number, int code, int value) {
  sigset_t one;
  siginfo_t info;
  const struct timespec none = {0, 0};
  sigemptyset(&one);
  sigaddset(&one, number);
  memset(&info, 0, sizeof info);
  int found = sigtimedwait(&one, &info, &none);
  if (found != number) target_fail("signal %d (value %d) is not queued", number, value);
  CHECK_EQUAL(info.si_code, code);
  CHECK_EQUAL(info.si_pid, getpid());
  CHECK_EQUAL(info.si_uid, getuid());
  if (code == SI_QUEUE) CHECK_EQUAL(info.si_value.sival_int, value);
}

static void expect_none(void) {
  sigset_t pending;
  CHECK_EQUAL(sigpending(&pending), 0);
  for (int number = 1; number <= SIGRTMAX; ++number)
    if (sigismember(&pending, number) == 1) target_fail("signal %d is queued once too often", number);
}

static void* work(void* unused) {
  g_worker_tid = get_tid();
  for (int i = 0; i < kQueued; ++i) CHECK_EQUAL(queue_to(g_worker_tid, SIGRTMIN + 3, 500 + i), 0);
  CHECK_EQUAL(queue_to(g_worker_tid, SIGUSR2, 9), 0);
  g_queued = true;
  while (!g_check) sleep_ms(2);
  for (int i = 0; i < kQueued; ++i) expect(SIGRTMIN + 3, SI_QUEUE, 500 + i);
  expect(SIGUSR2, SI_QUEUE, 9);
  sigset_t now;
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
  CHECK(memcmp(&now, &g_mask, 8) == 0);
  g_done = true;
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  sigemptyset(&g_mask);
  sigaddset(&g_mask, SIGUSR1);
  sigaddset(&g_mask, SIGUSR2);
  sigaddset(&g_mask, SIGTERM);
  for (int i = 0; i < 6; ++i) sigaddset(&g_mask, SIGRTMIN + i);
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &g_mask, NULL), 0);
  pthread_t thread = start_thread(work, NULL);
  while (!g_queued) sleep_ms(1);
  union sigval value;
  for (int i = 0; i < kQueued; ++i) {
    value.sival_int = 100 + i;
    CHECK_EQUAL(sigqueue(getpid(), SIGRTMIN + 5, value), 0);
    value.sival_int = 200 + i;
    CHECK_EQUAL(sigqueue(getpid(), SIGRTMIN + 1, value), 0);
    CHECK_EQUAL(queue_to(getpid(), SIGRTMIN + 1, 300 + i), 0);
  }
  CHECK_EQUAL(kill(getpid(), SIGUSR1), 0);
  CHECK_EQUAL(kill(getpid(), SIGTERM), 0);
  target_ready();
  target_wait(NULL);
  g_check = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK(g_done);
  for (int i = 0; i < kQueued; ++i) expect(SIGRTMIN + 1, SI_QUEUE, 300 + i);  // the thread's own come first
  for (int i = 0; i < kQueued; ++i) expect(SIGRTMIN + 1, SI_QUEUE, 200 + i);
  for (int i = 0; i < kQueued; ++i) expect(SIGRTMIN + 5, SI_QUEUE, 100 + i);
  expect(SIGUSR1, SI_USER, 0);
  expect(SIGTERM, SI_USER, 0);
  expect_none();
  sigset_t now;
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
  CHECK(memcmp(&now, &g_mask, 8) == 0);
  target_pass();
}
