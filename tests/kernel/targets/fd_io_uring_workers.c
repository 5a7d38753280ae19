// Limits of the kernel's workers (IORING_REGISTER_IOWQ_MAX_WORKERS): each thread has its own.
#include "../uring.h"

enum { kMostWorkers = 19 };

static struct uring g_other;
static _Atomic int g_ready, g_phase;

static void limit(struct uring* ring, unsigned bounded, unsigned unbounded) {
  unsigned most[2] = {bounded, unbounded};
  if (syscall(SYS_io_uring_register, ring->fd, kMostWorkers, most, 2) != 0)
    target_skip("limits of workers: %s", strerror(errno));
}

static void expect(struct uring* ring, unsigned bounded, unsigned unbounded) {
  unsigned most[2] = {0, 0};
  CHECK_EQUAL(syscall(SYS_io_uring_register, ring->fd, kMostWorkers, most, 2), 0);
  CHECK_EQUAL(most[0], bounded);
  CHECK_EQUAL(most[1], unbounded);
}

static void use(struct uring* ring, uint64_t data) {
  uring_next(ring, IORING_OP_NOP, data);
  uring_submit(ring, 1, 1);
  uring_expect(ring, data, 0);
}

static void* work(void* unused) {
  if (!uring_make(&g_other, 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  limit(&g_other, 2, 5);
  use(&g_other, 1);
  g_ready = 1;
  while (g_phase == 0) usleep(1000);
  expect(&g_other, 2, 5);
  use(&g_other, 2);
  return unused;
}

int main(int argc, char** argv) {
  static struct uring ring;
  target_init(argc, argv);
  if (!uring_make(&ring, 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  limit(&ring, 3, 7);
  use(&ring, 1);
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, work, NULL), 0);
  while (g_ready == 0) usleep(1000);
  target_ready();
  target_wait(NULL);
  expect(&ring, 3, 7);
  use(&ring, 2);
  g_phase = 1;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
