// timer_create timers keep their numbers (with a hole), clocks, way of notice, value, interval and time left.
#include "target.h"

struct KernelEvent {  // struct sigevent as the kernel reads it
  union sigval value;
  int signo, notify, tid;
  int pad[11];
};
enum { kTimers = 6 };
static int g_id[kTimers];
static volatile int g_ticks, g_thread_ticks, g_wrong;
static pid_t g_worker_tid;
static volatile bool g_end;

static void tick(int number, siginfo_t* info, void* context) {
  (void)context;
  if (info->si_code != SI_TIMER) ++g_wrong;
  if (number == SIGRTMIN) {
    if (info->si_value.sival_int != 4242 || info->si_overrun < 0 || info->si_overrun > 100000) ++g_wrong;
    ++g_ticks;
  } else {
    if (info->si_value.sival_int != 777 || get_tid() != g_worker_tid) ++g_wrong;
    ++g_thread_ticks;
  }
}

static int create(clockid_t clock, int notify, int number, int value, pid_t tid) {
  struct KernelEvent event;
  int id = -1;
  memset(&event, 0, sizeof event);
  event.value.sival_int = value;
  event.signo = number;
  event.notify = notify;
  event.tid = tid;
  CHECK_EQUAL(syscall(SYS_timer_create, clock, &event, &id), 0);
  return id;
}

static void set(int id, double first, double interval) {
  struct itimerspec spec = {{(time_t)interval, (long)((interval - (double)(time_t)interval) * 1e9)},
                            {(time_t)first, (long)((first - (double)(time_t)first) * 1e9)}};
  CHECK_EQUAL(syscall(SYS_timer_settime, id, 0, &spec, NULL), 0);
}

static struct itimerspec get(int id) {
  struct itimerspec spec;
  if (syscall(SYS_timer_gettime, id, &spec) != 0) target_fail("there is no timer %d: %s", id, strerror(errno));
  return spec;
}

static void* work(void* unused) {
  g_worker_tid = get_tid();
  while (!g_end) sleep_ms(5);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = tick;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  CHECK_EQUAL(sigaction(SIGRTMIN, &action, NULL), 0);
  CHECK_EQUAL(sigaction(SIGRTMIN + 1, &action, NULL), 0);
  pthread_t thread = start_thread(work, NULL);
  while (g_worker_tid == 0) sleep_ms(1);

  int removed = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN, 1, 0);
  g_id[0] = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN, 4242, 0);
  g_id[1] = create(CLOCK_REALTIME, SIGEV_THREAD_ID, SIGRTMIN + 1, 777, g_worker_tid);
  g_id[2] = create(CLOCK_BOOTTIME, SIGEV_NONE, 0, 3, 0);
  int gap = create(CLOCK_MONOTONIC, SIGEV_NONE, 0, 1, 0);
  g_id[3] = create(CLOCK_REALTIME, SIGEV_SIGNAL, SIGRTMIN + 2, 5, 0);
  g_id[4] = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 2, 6, 0);
  g_id[5] = create(CLOCK_PROCESS_CPUTIME_ID, SIGEV_SIGNAL, SIGRTMIN + 2, 7, 0);
  CHECK_EQUAL(syscall(SYS_timer_delete, removed), 0);
  CHECK_EQUAL(syscall(SYS_timer_delete, gap), 0);
  int64_t start = now_ns();
  set(g_id[0], 0.01, 0.01);
  set(g_id[1], 0.02, 0.02);
  set(g_id[2], 1000, 2.5);
  set(g_id[3], 2000, 0);
  set(g_id[5], 3000, 0);
  target_ready();
  target_wait(NULL);

  int before = g_ticks, thread_before = g_thread_ticks;
  for (int i = 0; i < 300 && (g_ticks < before + 3 || g_thread_ticks < thread_before + 3); ++i) sleep_ms(10);
  CHECK(g_ticks >= before + 3 && g_thread_ticks >= thread_before + 3);
  CHECK_EQUAL(g_wrong, 0);
  CHECK_EQUAL(get(g_id[0]).it_interval.tv_nsec, 10000000);
  CHECK_EQUAL(get(g_id[1]).it_interval.tv_nsec, 20000000);
  struct itimerspec far = get(g_id[2]);
  int64_t left = (int64_t)far.it_value.tv_sec * 1000000000 + far.it_value.tv_nsec, lived = now_ns() - start;
  CHECK(left <= 1000000000000 - (lived - target_gap_ns()) + 1000000000 && left >= 1000000000000 - lived - 1000000000);
  CHECK(far.it_interval.tv_sec == 2 && far.it_interval.tv_nsec == 500000000);
  CHECK(get(g_id[3]).it_value.tv_sec <= 2000 && get(g_id[3]).it_value.tv_sec > 1900);
  struct itimerspec idle = get(g_id[4]);
  CHECK(idle.it_value.tv_sec == 0 && idle.it_value.tv_nsec == 0 && idle.it_interval.tv_sec == 0);
  CHECK(get(g_id[5]).it_value.tv_sec <= 3000 && get(g_id[5]).it_value.tv_sec > 2900);
  long overrun = syscall(SYS_timer_getoverrun, g_id[0]);
  CHECK(overrun >= 0 && overrun < 100000);
  struct itimerspec spec;
  CHECK(syscall(SYS_timer_gettime, removed, &spec) == -1 && errno == EINVAL);
  CHECK(syscall(SYS_timer_gettime, gap, &spec) == -1 && errno == EINVAL);
  int next = create(CLOCK_MONOTONIC, SIGEV_NONE, 0, 1, 0);  // numbers go on without a clash
  for (int i = 0; i < kTimers; ++i) CHECK(next != g_id[i]);
  g_end = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
