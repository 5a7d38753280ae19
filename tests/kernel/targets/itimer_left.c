// The time left of ITIMER_REAL does not run while the process is not there.
#include <sys/time.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  const struct itimerval real = {{3, 0}, {1000, 0}};
  int64_t start = now_ns();
  CHECK_EQUAL(setitimer(ITIMER_REAL, &real, NULL), 0);
  target_ready();
  target_wait(NULL);
  struct itimerval now;
  CHECK_EQUAL(getitimer(ITIMER_REAL, &now), 0);
  int64_t left = (int64_t)now.it_value.tv_sec * 1000000000 + (int64_t)now.it_value.tv_usec * 1000;
  int64_t lived = now_ns() - start;
  CHECK(left <= 1000000000000 - (lived - target_gap_ns()) + 1000000000);
  CHECK(left >= 1000000000000 - lived - 1000000000);
  CHECK_EQUAL(now.it_interval.tv_sec, 3);
  target_pass();
}
