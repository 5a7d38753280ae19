// eventfds of two processes: one that a child waits for, a semaphore with a value.
#include <sys/eventfd.h>

#include "target.h"

static int g_event, g_semaphore;

static int child(void* unused) {
  (void)unused;
  uint64_t value = 0;
  child_ready();
  CHECK_EQUAL(read(g_event, &value, sizeof value), sizeof value);
  CHECK_EQUAL(value, 5);
  CHECK_EQUAL(read(g_semaphore, &value, sizeof value), sizeof value);
  CHECK_EQUAL(value, 1);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_event = eventfd(0, 0);
  g_semaphore = eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK);
  CHECK(g_event >= 0 && g_semaphore >= 0);
  pid_t below = start_child(child, NULL);
  sleep_ms(10);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_event, below, g_event, true);
  uint64_t value = 5;
  CHECK_EQUAL(write(g_event, &value, sizeof value), sizeof value);
  expect_exit(below, 1);
  for (int i = 0; i < 2; ++i) {
    CHECK_EQUAL(read(g_semaphore, &value, sizeof value), sizeof value);
    CHECK_EQUAL(value, 1);
  }
  CHECK(read(g_semaphore, &value, sizeof value) == -1 && errno == EAGAIN);
  target_pass();
}
