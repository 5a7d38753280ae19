// An epoll within an epoll; edge-triggered, one-shot that has fired and one that has not; one member ready before the
// dump.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "target.h"

static int add(int epoll, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int wait_one(int epoll, uint64_t* data) {
  struct epoll_event event;
  int count = epoll_wait(epoll, &event, 1, 0);
  if (count == 1) *data = event.data.u64;
  return count;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int outer = epoll_create1(0), inner = epoll_create1(0), deep = epoll_create1(0);
  int level = eventfd(0, 0), edge = eventfd(1, 0), fired = eventfd(1, 0), armed = eventfd(0, 0);
  CHECK(outer >= 0 && inner >= 0 && deep >= 0 && level >= 0 && edge >= 0 && fired >= 0 && armed >= 0);
  CHECK_EQUAL(add(outer, inner, EPOLLIN, 1), 0);
  CHECK_EQUAL(add(inner, deep, EPOLLIN, 2), 0);
  CHECK_EQUAL(add(deep, level, EPOLLIN, 3), 0);
  int alone = epoll_create1(0);
  uint64_t data = 0, one = 1;
  CHECK_EQUAL(add(alone, fired, EPOLLIN | EPOLLONESHOT, 11), 0);
  CHECK_EQUAL(wait_one(alone, &data), 1);
  CHECK_EQUAL(data, 11);
  CHECK_EQUAL(add(alone, armed, EPOLLIN | EPOLLONESHOT, 12), 0);
  int edges = epoll_create1(0);
  CHECK_EQUAL(add(edges, edge, EPOLLIN | EPOLLET, 13), 0);
  CHECK_EQUAL(wait_one(edges, &data), 1);
  CHECK_EQUAL(wait_one(edges, &data), 0);  // heard of already
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(wait_one(outer, &data), 0);
  CHECK_EQUAL(write(level, &one, sizeof one), sizeof one);
  CHECK_EQUAL(wait_one(outer, &data), 1);
  CHECK_EQUAL(data, 1);
  CHECK_EQUAL(wait_one(inner, &data), 1);
  CHECK_EQUAL(data, 2);
  CHECK_EQUAL(wait_one(deep, &data), 1);
  CHECK_EQUAL(data, 3);
  CHECK_EQUAL(wait_one(alone, &data), 0);  // the fired one stays silent, though it is readable
  CHECK_EQUAL(write(armed, &one, sizeof one), sizeof one);
  CHECK_EQUAL(wait_one(alone, &data), 1);
  CHECK_EQUAL(data, 12);
  CHECK_EQUAL(wait_one(alone, &data), 0);
  // An edge that was heard of may be reported once more after a restore; a new one must be.
  while (wait_one(edges, &data) == 1) {
  }
  CHECK_EQUAL(write(edge, &one, sizeof one), sizeof one);
  CHECK_EQUAL(wait_one(edges, &data), 1);
  CHECK_EQUAL(data, 13);
  struct epoll_event again = {.events = EPOLLIN, .data.u64 = 14};
  CHECK_EQUAL(epoll_ctl(alone, EPOLL_CTL_MOD, fired, &again), 0);
  CHECK_EQUAL(wait_one(alone, &data), 1);
  CHECK_EQUAL(data, 14);
  target_pass();
}
