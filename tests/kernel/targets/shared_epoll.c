// An epoll of two processes: a child waits in it for what the root writes.
#include <sys/epoll.h>

#include "target.h"

static int g_epoll, g_pipe[2], g_late[2];

static int child(void* unused) {
  (void)unused;
  CHECK_EQUAL(close(g_pipe[1]), 0);
  child_ready();
  struct epoll_event event;
  CHECK_EQUAL(epoll_wait(g_epoll, &event, 1, -1), 1);
  CHECK(event.data.u64 == 0x123456789abcdefULL);
  CHECK_EQUAL(event.events, EPOLLIN);
  char byte;
  CHECK_EQUAL(read(g_pipe[0], &byte, 1), 1);
  event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 99};
  CHECK_EQUAL(epoll_ctl(g_epoll, EPOLL_CTL_ADD, g_late[0], &event), 0);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(pipe(g_pipe) == 0 && pipe(g_late) == 0);
  g_epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcdefULL};
  CHECK_EQUAL(epoll_ctl(g_epoll, EPOLL_CTL_ADD, g_pipe[0], &event), 0);
  pid_t below = start_child(child, NULL);
  sleep_ms(10);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_epoll, below, g_epoll, true);
  CHECK_EQUAL(write(g_pipe[1], "x", 1), 1);
  expect_exit(below, 1);
  CHECK_EQUAL(write(g_late[1], "x", 1), 1);
  CHECK_EQUAL(epoll_wait(g_epoll, &event, 1, 1000), 1);
  CHECK_EQUAL(event.data.u64, 99);
  target_pass();
}
