// Rings that tell their completions to eventfds: two to one, one of them for a single thread, one only of those that
// come later. Each completion is told as often as before.
#include <poll.h>
#include <sys/eventfd.h>

#include "../uring.h"

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif

enum { kRings = 3 };
static struct uring g_ring[kRings];
static int g_event[kRings], g_other;
static uint64_t g_inline[kRings], g_async[kRings];  // how often one completion of that sort is told

/// What the eventfd has been told since it was read last.
static uint64_t told(int which) {
  uint64_t count = 0;
  if (read(g_event[which], &count, sizeof count) < 0) CHECK_EQUAL(errno, EAGAIN);
  return count;
}

static uint64_t no_op(int which, bool async) {
  CHECK_EQUAL(told(which), 0);
  uring_next(&g_ring[which], IORING_OP_NOP, 5)->flags = async ? IOSQE_ASYNC : 0;
  uring_submit(&g_ring[which], 1, 1);
  uring_expect(&g_ring[which], 5, 0);
  // A worker of the kernel's shows a completion before it tells of it.
  struct pollfd word = {g_event[which], POLLIN, 0};
  if (async) poll(&word, 1, 5000);
  return told(which);
}

static void expect_told(void) {
  for (int i = 0; i < kRings; ++i) {
    if (g_ring[i].fd < 0) continue;
    CHECK_EQUAL(no_op(i, false), g_inline[i]);
    CHECK_EQUAL(no_op(i, true), g_async[i]);
  }
}

static void step(int number) {
  (void)number;
  expect_told();
}

static void tell(int which, int event, unsigned how) {
  g_event[which] = event;
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring[which].fd, how, &event, 1), 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_other = eventfd(9, EFD_NONBLOCK);
  if (!uring_make(&g_ring[0], 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  CHECK(uring_make(&g_ring[1], 4, 0, true));
  if (!uring_make(&g_ring[2], 8, IORING_SETUP_SINGLE_ISSUER, false)) g_ring[2].fd = -1;
  uring_no_ops(&g_ring[0], 100);
  tell(0, eventfd(0, EFD_NONBLOCK), IORING_REGISTER_EVENTFD);
  tell(1, eventfd(0, EFD_NONBLOCK), IORING_REGISTER_EVENTFD_ASYNC);
  if (g_ring[2].fd >= 0) tell(2, g_event[0], IORING_REGISTER_EVENTFD);
  for (int i = 0; i < kRings; ++i) {
    if (g_ring[i].fd < 0) continue;
    g_inline[i] = no_op(i, false);
    g_async[i] = no_op(i, true);
  }
  CHECK_EQUAL(g_inline[0], 1);
  CHECK_EQUAL(g_inline[1], 0);

  target_ready();
  target_wait(step);

  expect_told();
  // Held back by the program, and told again.
  unsigned* flags = uring_cq(&g_ring[0], g_ring[0].p.cq_off.flags);
  __atomic_store_n(flags, IORING_CQ_EVENTFD_DISABLED, __ATOMIC_RELEASE);
  CHECK_EQUAL(no_op(0, false), 0);
  __atomic_store_n(flags, 0, __ATOMIC_RELEASE);
  CHECK_EQUAL(no_op(0, false), 1);
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring[0].fd, IORING_UNREGISTER_EVENTFD, NULL, 0), 0);
  CHECK_EQUAL(no_op(0, false), 0);
  uint64_t other = 0;
  CHECK(read(g_other, &other, sizeof other) == sizeof other && other == 9);
  target_pass();
}
