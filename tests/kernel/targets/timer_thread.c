// A timer by the processor time of one thread, which is told of it, as profilers have it: another thread's time is
// nothing to it.
#include "target.h"

static volatile int g_ticks, g_wrong, g_made, g_burn, g_done;
static volatile pid_t g_tid;

static void tick(int number) {
  (void)number;
  if (syscall(SYS_gettid) != g_tid) ++g_wrong;
  ++g_ticks;
}
static int64_t own_time_ns(void) {
  struct timespec now;
  CHECK_EQUAL(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}
static void burn(int64_t ns) {
  for (const int64_t end = own_time_ns() + ns; own_time_ns() < end;) {
  }
}
static void* work(void* unused) {
  g_tid = (pid_t)syscall(SYS_gettid);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGURG};
  event._sigev_un._tid = g_tid;
  timer_t timer;
  CHECK_EQUAL(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer), 0);
  const struct itimerspec every = {.it_interval.tv_nsec = 20000000, .it_value.tv_nsec = 20000000};
  CHECK_EQUAL(timer_settime(timer, 0, &every, NULL), 0);
  g_made = 1;
  while (!g_burn) sleep_ms(5);
  burn(200000000);
  g_done = 1;
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
  CHECK_EQUAL(sigaction(SIGURG, &action, NULL), 0);
  pthread_t thread = start_thread(work, NULL);
  while (!g_made) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  const int before = g_ticks;
  burn(200000000);
  CHECK(g_ticks <= before + 1);
  g_burn = 1;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK(g_ticks >= before + 5);
  CHECK_EQUAL(g_wrong, 0);
  target_pass();
}
