// Timers of children: POSIX, interval and processor time; they tick on in the child that set them, and in no other.
#include <sys/time.h>

#include "target.h"

enum { kValue = 4711 };
static volatile sig_atomic_t g_posix, g_real, g_alarm_value;

static void on_posix(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  g_alarm_value = info->si_value.sival_int;
  ++g_posix;
}
static void on_real(int number) { g_real += number == SIGALRM; }

static int child(void* unused) {
  (void)unused;
  struct sigaction action = {.sa_sigaction = on_posix, .sa_flags = SA_SIGINFO | SA_RESTART};
  CHECK_EQUAL(sigaction(SIGRTMIN, &action, NULL), 0);
  CHECK(signal(SIGALRM, on_real) != SIG_ERR);
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = kValue};
  timer_t timer, distant;
  CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_create(CLOCK_REALTIME, NULL, &distant) == 0);
  struct itimerspec every = {{0, 10 * 1000 * 1000}, {0, 10 * 1000 * 1000}}, late = {{0, 0}, {1000, 0}};
  CHECK(timer_settime(timer, 0, &every, NULL) == 0 && timer_settime(distant, 0, &late, NULL) == 0);
  struct itimerval real = {{0, 15000}, {0, 15000}};
  CHECK_EQUAL(setitimer(ITIMER_REAL, &real, NULL), 0);
  child_wait(1);
  int posix = g_posix, alarms = g_real;
  for (int i = 0; i < 5000 && (g_posix < posix + 3 || g_real < alarms + 3); ++i) sleep_ms(1);
  CHECK(g_posix >= posix + 3 && g_real >= alarms + 3);
  CHECK_EQUAL(g_alarm_value, kValue);
  CHECK_EQUAL(timer_gettime(distant, &late), 0);
  CHECK(late.it_value.tv_sec > 900 && late.it_value.tv_sec <= 1000);
  CHECK_EQUAL(getitimer(ITIMER_REAL, &real), 0);
  CHECK_EQUAL(real.it_interval.tv_usec, 15000);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pid_t children[2] = {start_child(child, NULL), start_child(child, NULL)};
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_posix + g_real, 0);
  struct itimerval none;
  CHECK_EQUAL(getitimer(ITIMER_REAL, &none), 0);
  CHECK_EQUAL(none.it_value.tv_sec + none.it_value.tv_usec, 0);
  release(1);
  for (int i = 0; i < 2; ++i) expect_exit(children[i], 1);
  target_pass();
}
