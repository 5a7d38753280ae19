// poll, select, epoll_wait and sigtimedwait with a time limit that ends after the restore: they time out, not too
// early.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

#include "target.h"

static int g_event, g_epoll;
static volatile bool g_end;
enum { kLimitMs = 900, kKinds = 5 };
static struct Waiter {
  int kind;
  long result;
  int error;
  int64_t start, end;
} g_waiter[kKinds];

static long wait_kind(int kind) {
  struct pollfd one = {g_event, POLLIN, 0};
  struct timespec limit = {0, kLimitMs * 1000000L};
  struct timeval limit_us = {0, kLimitMs * 1000L};
  struct epoll_event event;
  sigset_t set;
  fd_set read_set;
  switch (kind) {
    case 0: return poll(&one, 1, kLimitMs);
    case 1: return ppoll(&one, 1, &limit, NULL);
    case 2:
      FD_ZERO(&read_set);
      FD_SET(g_event, &read_set);
      return select(g_event + 1, &read_set, NULL, NULL, &limit_us);
    case 3: return epoll_wait(g_epoll, &event, 1, kLimitMs);
    default:
      sigemptyset(&set);
      sigaddset(&set, SIGUSR1);
      return sigtimedwait(&set, NULL, &limit) == -1 && errno == EAGAIN ? 0 : -1;
  }
}

static void* wait_once(void* argument) {
  struct Waiter* own = argument;
  own->start = now_ns();
  own->result = wait_kind(own->kind);
  own->error = errno;
  own->end = now_ns();
  while (!g_end) sleep_ms(5);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_event = eventfd(0, EFD_CLOEXEC);
  g_epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN};
  CHECK_EQUAL(epoll_ctl(g_epoll, EPOLL_CTL_ADD, g_event, &event), 0);
  sigset_t block;
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &block, NULL), 0);
  pthread_t thread[kKinds];
  for (int i = 0; i < kKinds; ++i) {
    g_waiter[i].kind = i;
    thread[i] = start_thread(wait_once, &g_waiter[i]);
  }
  sleep_ms(100);
  target_ready();
  target_wait(NULL);
  g_end = true;
  for (int i = 0; i < kKinds; ++i) {
    CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    if (g_waiter[i].result != 0) target_fail("call %d: %ld, errno %d", i, g_waiter[i].result, g_waiter[i].error);
    int64_t took = g_waiter[i].end - g_waiter[i].start;
    if (took < kLimitMs * 1000000LL) target_fail("call %d timed out after %lld us", i, (long long)took / 1000);
  }
  target_pass();
}
