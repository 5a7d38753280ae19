// eventfd counts: zero, some, almost full, and as a semaphore.
#include <sys/eventfd.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int none = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), some = eventfd(77, 0), full = eventfd(0, EFD_NONBLOCK),
      semaphore = eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK);
  CHECK_EQUAL(eventfd_write(full, 0xfffffffffffffffe), 0);
  CHECK_EQUAL(dup2(some, 40), 40);
  target_ready();
  target_wait(NULL);
  eventfd_t value = 0;
  CHECK(eventfd_read(none, &value) == -1 && errno == EAGAIN);
  CHECK_EQUAL(fcntl(none, F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(eventfd_write(some, 1), 0);
  CHECK_EQUAL(eventfd_read(40, &value), 0);
  CHECK_EQUAL(value, 78);
  CHECK(eventfd_write(full, 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(eventfd_read(full, &value), 0);
  CHECK(value == 0xfffffffffffffffe);
  for (int i = 0; i < 3; ++i) CHECK(eventfd_read(semaphore, &value) == 0 && value == 1);
  CHECK(eventfd_read(semaphore, &value) == -1 && errno == EAGAIN);
  target_pass();
}
