// The three interval timers: one that ticks all along, and the time left of two that are far away.
#include <sys/time.h>

#include "target.h"

static volatile int g_ticks;
static void tick(int number) {
  (void)number;
  ++g_ticks;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = tick;
  action.sa_flags = SA_RESTART;
  CHECK_EQUAL(sigaction(SIGALRM, &action, NULL), 0);
  const struct itimerval real = {{0, 10000}, {0, 10000}}, virtual = {{0, 0}, {500, 0}}, prof = {{7, 5000}, {900, 0}};
  CHECK_EQUAL(setitimer(ITIMER_REAL, &real, NULL), 0);
  CHECK_EQUAL(setitimer(ITIMER_VIRTUAL, &virtual, NULL), 0);
  CHECK_EQUAL(setitimer(ITIMER_PROF, &prof, NULL), 0);
  target_ready();
  target_wait(NULL);
  int before = g_ticks;
  for (int i = 0; i < 200 && g_ticks < before + 3; ++i) sleep_ms(10);
  CHECK(g_ticks >= before + 3);
  struct itimerval now;
  CHECK_EQUAL(getitimer(ITIMER_REAL, &now), 0);
  CHECK_EQUAL(now.it_interval.tv_usec, 10000);
  CHECK_EQUAL(getitimer(ITIMER_VIRTUAL, &now), 0);
  CHECK(now.it_value.tv_sec <= 500 && now.it_value.tv_sec >= 480);
  CHECK_EQUAL(now.it_interval.tv_sec, 0);
  CHECK_EQUAL(getitimer(ITIMER_PROF, &now), 0);
  CHECK(now.it_value.tv_sec <= 900 && now.it_value.tv_sec >= 880);
  CHECK_EQUAL(now.it_interval.tv_sec, 7);
  CHECK_EQUAL(now.it_interval.tv_usec / 1000, 5);
  target_pass();
}
