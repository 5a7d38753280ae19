// A timerfd of two processes: both read from one count.
#include <sys/timerfd.h>

#include "target.h"

static int g_timer;

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  uint64_t expirations = 0;
  CHECK_EQUAL(read(g_timer, &expirations, sizeof expirations), sizeof expirations);
  CHECK(expirations > 0);
  struct itimerspec stop = {{0, 0}, {0, 0}};
  CHECK_EQUAL(timerfd_settime(g_timer, 0, &stop, NULL), 0);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct itimerspec every = {{0, 20 * 1000 * 1000}, {0, 20 * 1000 * 1000}};
  CHECK(g_timer >= 0 && timerfd_settime(g_timer, 0, &every, NULL) == 0);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_timer, below, g_timer, true);
  struct itimerspec now;
  CHECK_EQUAL(timerfd_gettime(g_timer, &now), 0);
  CHECK_EQUAL(now.it_interval.tv_nsec, 20 * 1000 * 1000);
  sleep_ms(50);
  release(1);
  expect_exit(below, 1);
  uint64_t expirations = 0;
  CHECK(read(g_timer, &expirations, sizeof expirations) == -1 && errno == EAGAIN);
  CHECK_EQUAL(timerfd_gettime(g_timer, &now), 0);
  CHECK_EQUAL(now.it_value.tv_sec + now.it_value.tv_nsec, 0);
  target_pass();
}
