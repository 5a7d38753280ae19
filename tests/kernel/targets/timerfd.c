// timerfd: one that ticks, one with the time left, one with ticks nobody has read, one to an absolute time, one idle.
#include <sys/timerfd.h>

#include "target.h"

static int create(clockid_t clock, int flags, int64_t first_ns, int64_t interval_ns) {
  int fd = timerfd_create(clock, TFD_NONBLOCK | TFD_CLOEXEC);
  struct itimerspec spec = {{interval_ns / 1000000000, interval_ns % 1000000000},
                            {first_ns / 1000000000, first_ns % 1000000000}};
  CHECK(fd >= 0);
  CHECK_EQUAL(timerfd_settime(fd, flags, &spec, NULL), 0);
  return fd;
}

static int64_t left(int fd) {
  struct itimerspec spec;
  CHECK_EQUAL(timerfd_gettime(fd, &spec), 0);
  return (int64_t)spec.it_value.tv_sec * 1000000000 + spec.it_value.tv_nsec;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int64_t start = now_ns();
  int ticking = create(CLOCK_MONOTONIC, 0, 10000000, 10000000);
  int far = create(CLOCK_REALTIME, 0, 1000000000000, 3000000000);
  int unread = create(CLOCK_MONOTONIC, 0, 1000000, 0);
  int absolute = create(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, start + 1000000000000, 0);
  int idle = create(CLOCK_BOOTTIME, 0, 0, 0);
  sleep_ms(30);
  target_ready();
  target_wait(NULL);
  uint64_t ticks = 0;
  int64_t lived = now_ns() - start;
  CHECK_EQUAL(read(ticking, &ticks, 8), 8);
  CHECK(ticks >= 2 && ticks <= 2 + (uint64_t)lived / 10000000);
  ticks = 0;
  for (int i = 0; i < 200 && read(ticking, &ticks, 8) != 8; ++i) sleep_ms(5);
  CHECK(ticks >= 1 && ticks < 100);
  CHECK(left(far) <= 1000000000000 - (lived - target_gap_ns()) + 1000000000 &&
        left(far) >= 1000000000000 - lived - 1000000000);
  struct itimerspec spec;
  CHECK_EQUAL(timerfd_gettime(far, &spec), 0);
  CHECK_EQUAL(spec.it_interval.tv_sec, 3);
  CHECK_EQUAL(read(unread, &ticks, 8), 8);
  CHECK_EQUAL(ticks, 1);
  CHECK(read(unread, &ticks, 8) == -1 && errno == EAGAIN);
  CHECK(left(absolute) <= 1000000000000 - lived + 1000000000 && left(absolute) > 0);
  CHECK(read(idle, &ticks, 8) == -1 && errno == EAGAIN);
  CHECK_EQUAL(left(idle), 0);
  CHECK_EQUAL(fcntl(idle, F_GETFD), FD_CLOEXEC);
  target_pass();
}
