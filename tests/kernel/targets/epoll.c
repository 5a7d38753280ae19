// An epoll set with its events and data, edge-triggered and one-shot entries, a pipe, a timer, and one set inside
// another; how it polls network devices.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>

#include "target.h"

/// struct epoll_params of Linux 6.9.
struct Parameters {
  uint32_t microseconds;
  uint16_t budget;
  uint8_t preferred, unused;
};
enum { kSet = 0x40088A01 };
static const unsigned long kGet = 0x80088A02;

static void add(int epoll, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

static uint64_t take(int epoll, int* count) {
  struct epoll_event event[8];
  uint64_t all = 0;
  *count = epoll_wait(epoll, event, 8, 0);
  CHECK(*count >= 0);
  for (int i = 0; i < *count; ++i) all |= event[i].data.u64;
  return all;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0), pipes[2];
  int level = eventfd(0, 0), edge = eventfd(0, 0), once = eventfd(1, 0), spent = eventfd(1, 0);
  int timer = timerfd_create(CLOCK_MONOTONIC, 0);
  CHECK_EQUAL(pipe(pipes), 0);
  add(inner, level, EPOLLIN, 1);
  add(inner, edge, EPOLLIN | EPOLLET, 2);
  add(inner, once, EPOLLIN | EPOLLONESHOT, 4);
  add(inner, pipes[0], EPOLLIN | EPOLLRDHUP, 8);
  add(inner, timer, EPOLLIN, 1ull << 63);
  add(outer, inner, EPOLLIN, 0xdeadbeef);
  add(outer, spent, EPOLLIN | EPOLLONESHOT, 16);
  const struct Parameters wanted = {77, 8, 1, 0};
  struct Parameters found = {0, 0, 0, 0};
  const bool polls = ioctl(outer, kSet, &wanted) == 0;  // where the kernel knows it
  int count;
  CHECK_EQUAL(take(outer, &count) & 16, 16);  // from here on the one-shot entry is off
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(take(inner, &count), 4);
  CHECK_EQUAL(count, 1);
  take(inner, &count);
  CHECK_EQUAL(count, 0);
  take(outer, &count);
  CHECK_EQUAL(count, 0);
  CHECK_EQUAL(eventfd_write(edge, 1), 0);
  CHECK_EQUAL(eventfd_write(level, 1), 0);
  CHECK_EQUAL(write(pipes[1], "x", 1), 1);
  CHECK_EQUAL(take(outer, &count), 0xdeadbeef);
  CHECK_EQUAL(take(inner, &count), 11);
  CHECK_EQUAL(take(inner, &count), 9);  // the edge has been seen
  const struct itimerspec soon = {{0, 0}, {0, 1}};
  CHECK_EQUAL(timerfd_settime(timer, 0, &soon, NULL), 0);
  sleep_ms(5);
  CHECK((take(inner, &count) >> 63) == 1);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 16};
  CHECK_EQUAL(epoll_ctl(outer, EPOLL_CTL_MOD, spent, &event), 0);
  CHECK_EQUAL(take(outer, &count) & 16, 16);
  CHECK_EQUAL(epoll_ctl(inner, EPOLL_CTL_DEL, level, NULL), 0);
  CHECK_EQUAL(fcntl(inner, F_GETFD), FD_CLOEXEC);
  if (polls) CHECK(ioctl(outer, kGet, &found) == 0 && memcmp(&found, &wanted, sizeof found) == 0);
  if (polls) CHECK(ioctl(inner, kGet, &found) == 0 && found.microseconds == 0 && found.budget == 0);
  target_pass();
}
