// Threads that enter a ring by a number of their own (IORING_REGISTER_RING_FDS), as liburing does on wish.
#include "../uring.h"

enum { kThreads = 3 };

static struct uring g_ring;
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int g_ready, g_phase;

/// A request that does nothing.
static void enter(unsigned number, uint64_t data) {
  pthread_mutex_lock(&g_lock);
  uring_next(&g_ring, IORING_OP_NOP, data);
  __atomic_store_n(uring_sq(&g_ring, g_ring.p.sq_off.tail), g_ring.sq_tail, __ATOMIC_RELEASE);
  const unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING;
  CHECK_EQUAL(syscall(SYS_io_uring_enter, number, 1, 1, flags, NULL, 0), 1);
  uring_expect(&g_ring, data, 0);
  pthread_mutex_unlock(&g_lock);
}

static bool take_number(unsigned number) {
  struct io_uring_rsrc_update update = {.offset = number, .data = (uint64_t)g_ring.fd};
  return syscall(SYS_io_uring_register, g_ring.fd, IORING_REGISTER_RING_FDS, &update, 1) == 1;
}

static void* work(void* argument) {
  const unsigned number = 3 + (unsigned)(uintptr_t)argument;
  CHECK(take_number(number));
  enter(number, number);
  ++g_ready;
  while (g_phase == 0) usleep(1000);
  enter(number, 100 + number);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!uring_make(&g_ring, 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  CHECK(dup(g_ring.fd) >= 0);
  if (!take_number(0)) target_skip("registered rings: %s", strerror(errno));
  pthread_t threads[kThreads];
  for (uintptr_t i = 0; i < kThreads; ++i) CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void*)i), 0);
  while (g_ready != kThreads) usleep(1000);
  target_ready();
  target_wait(NULL);
  g_phase = 1;
  for (int i = 0; i < kThreads; ++i) CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
  enter(0, 7);
  CHECK(syscall(SYS_io_uring_enter, 1, 0, 0, IORING_ENTER_REGISTERED_RING, NULL, 0) == -1);
  target_pass();
}
