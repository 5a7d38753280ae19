// One-shot entries that have fired are off for errors and hang-ups, too: of a socket, an eventfd, a hung-up pipe; more
// of them than one call takes back, beside an edge that has not been heard of. With "unready", in a set of its own, one
// of a pipe that is ready for nothing: it tells of nothing but errors and hang-ups.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "target.h"

enum { kMany = 150 };

static void add(int epoll, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

static int g_quiet[2], g_set = -1;

static void hold_unready(void) {
  struct epoll_event event;
  char byte;
  CHECK_EQUAL(pipe(g_quiet), 0);
  CHECK((g_set = epoll_create1(0)) >= 0);
  add(g_set, g_quiet[0], EPOLLIN | EPOLLONESHOT, 6);
  CHECK_EQUAL(write(g_quiet[1], "x", 1), 1);
  CHECK_EQUAL(epoll_wait(g_set, &event, 1, 0), 1);
  CHECK_EQUAL(read(g_quiet[0], &byte, 1), 1);
}

static void check_unready(void) {
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
  CHECK_EQUAL(epoll_wait(g_set, &event, 1, 0), 0);
  CHECK_EQUAL(write(g_quiet[1], "x", 1), 1);
  CHECK_EQUAL(epoll_wait(g_set, &event, 1, 0), 0);
  event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 7};
  CHECK_EQUAL(epoll_ctl(g_set, EPOLL_CTL_MOD, g_quiet[0], &event), 0);
  CHECK_EQUAL(epoll_wait(g_set, &event, 1, 0), 1);
  CHECK_EQUAL(event.data.u64, 7);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (argc > 2) hold_unready();
  int epoll = epoll_create1(0), pair[2], pipes[2], many[kMany], edge = eventfd(0, 0);
  struct epoll_event event;
  CHECK(epoll >= 0 && edge >= 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  CHECK_EQUAL(pipe(pipes), 0);
  CHECK_EQUAL(close(pipes[1]), 0);
  add(epoll, pair[0], EPOLLOUT | EPOLLONESHOT | EPOLLET, 1);
  add(epoll, pipes[0], EPOLLIN | EPOLLONESHOT, 2);
  for (int i = 0; i < kMany; ++i) {
    many[i] = eventfd(0, 0);
    add(epoll, many[i], EPOLLOUT | EPOLLONESHOT, 3);
  }
  for (int i = 0; i < kMany + 2; ++i) CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 0);
  add(epoll, edge, EPOLLIN | EPOLLET, 4);
  CHECK_EQUAL(eventfd_write(edge, 1), 0);
  target_ready();
  target_wait(NULL);
  if (argc > 2) check_unready();
  CHECK_EQUAL(close(pair[1]), 0);  // a hang-up
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
  CHECK_EQUAL(event.data.u64, 4);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 0);
  event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 5};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_MOD, pair[0], &event), 0);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
  CHECK_EQUAL(event.data.u64, 5);
  target_pass();
}
