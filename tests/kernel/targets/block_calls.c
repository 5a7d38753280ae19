// A thread in each system call that waits: read and write on a pipe, poll, ppoll, select, epoll_wait, epoll_pwait,
// sigtimedwait, pause and sigsuspend. What they wait for comes after the restore; none may return EINTR before.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

#include "target.h"

static int g_read[2], g_write[2], g_event;
static sigset_t g_signals, g_suspend;
static volatile int g_handled;
static void handle(int number) {
  (void)number;
  ++g_handled;
}

static long do_read(void) {
  char text[8];
  return read(g_read[0], text, sizeof text) == 4 && memcmp(text, "ping", 4) == 0 ? 0 : -1;
}
static long do_write(void) {
  char text[4096];
  memset(text, 'w', sizeof text);
  return write(g_write[1], text, sizeof text) == sizeof text ? 0 : -1;
}
static long do_poll(void) {
  struct pollfd one = {g_event, POLLIN, 0};
  return poll(&one, 1, -1) == 1 && one.revents == POLLIN ? 0 : -1;
}
static long do_poll_limit(void) {
  struct pollfd one = {g_event, POLLIN, 0};
  return poll(&one, 1, 1000000) == 1 && one.revents == POLLIN ? 0 : -1;
}
static long do_ppoll(void) {
  struct pollfd one = {g_event, POLLIN, 0};
  const struct timespec limit = {1000, 0};
  return ppoll(&one, 1, &limit, NULL) == 1 ? 0 : -1;
}
static long do_select(void) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(g_event, &set);
  struct timeval limit = {1000, 0};
  return select(g_event + 1, &set, NULL, NULL, &limit) == 1 ? 0 : -1;
}
static int make_epoll(void) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0xfeedfacecafebeef};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, g_event, &event), 0);
  return epoll;
}
static long do_epoll_wait(void) {
  struct epoll_event event;
  return epoll_wait(make_epoll(), &event, 1, -1) == 1 && event.data.u64 == 0xfeedfacecafebeef ? 0 : -1;
}
static long do_epoll_limit(void) {
  struct epoll_event event;
  return epoll_wait(make_epoll(), &event, 1, 1000000) == 1 ? 0 : -1;
}
static long do_epoll_pwait(void) {
  struct epoll_event event;
  return epoll_pwait(make_epoll(), &event, 1, -1, &g_signals) == 1 ? 0 : -1;
}
static long do_sigtimedwait(void) {
  const struct timespec limit = {1000, 0};
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  return sigtimedwait(&one, NULL, &limit) == SIGUSR1 ? 0 : -1;
}
static long do_sigwaitinfo(void) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  return sigwaitinfo(&one, NULL) == SIGUSR2 ? 0 : -1;
}
static long do_pause(void) { return pause() == -1 && errno == EINTR && g_handled > 0 ? 0 : -1; }
static long do_sigsuspend(void) { return sigsuspend(&g_suspend) == -1 && errno == EINTR && g_handled > 0 ? 0 : -1; }

static struct Call {
  const char* name;
  long (*body)(void);
  long number;
  int wake;  // 0: by descriptor, else the signal
  pid_t tid;
  long result;
  int error;
  volatile bool returned;
} g_call[] = {
    {.name = "read", .body = do_read, .number = SYS_read},
    {.name = "write", .body = do_write, .number = SYS_write},
    {.name = "poll", .body = do_poll, .number = SYS_poll},
    {.name = "poll with a limit", .body = do_poll_limit, .number = SYS_poll},
    {.name = "ppoll", .body = do_ppoll, .number = SYS_ppoll},
    {.name = "select", .body = do_select, .number = SYS_pselect6},
    {.name = "epoll_wait", .body = do_epoll_wait, .number = SYS_epoll_wait},
    {.name = "epoll_wait with a limit", .body = do_epoll_limit, .number = SYS_epoll_wait},
    {.name = "epoll_pwait", .body = do_epoll_pwait, .number = SYS_epoll_pwait},
    {.name = "sigtimedwait", .body = do_sigtimedwait, .number = SYS_rt_sigtimedwait, .wake = SIGUSR1},
    {.name = "sigwaitinfo", .body = do_sigwaitinfo, .number = SYS_rt_sigtimedwait, .wake = SIGUSR2},
    {.name = "pause", .body = do_pause, .number = SYS_pause, .wake = SIGHUP},
    {.name = "sigsuspend", .body = do_sigsuspend, .number = SYS_rt_sigsuspend, .wake = SIGHUP},
};
enum { kCalls = sizeof g_call / sizeof g_call[0] };

static void* wait_in_call(void* argument) {
  struct Call* own = argument;
  if (strcmp(own->name, "pause") == 0) {
    sigset_t open_mask = g_signals;
    sigdelset(&open_mask, SIGHUP);
    pthread_sigmask(SIG_SETMASK, &open_mask, NULL);
  }
  __atomic_store_n(&own->tid, get_tid(), __ATOMIC_SEQ_CST);
  own->result = own->body();
  own->error = errno;
  own->returned = true;
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  sigemptyset(&g_signals);
  sigaddset(&g_signals, SIGUSR1);
  sigaddset(&g_signals, SIGUSR2);
  sigaddset(&g_signals, SIGHUP);
  g_suspend = g_signals;
  sigdelset(&g_suspend, SIGHUP);
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &g_signals, NULL), 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handle;
  CHECK_EQUAL(sigaction(SIGHUP, &action, NULL), 0);
  CHECK(pipe2(g_read, O_CLOEXEC) == 0 && pipe2(g_write, O_CLOEXEC) == 0);
  char filler[65536];
  memset(filler, 'f', sizeof filler);
  CHECK_EQUAL(write(g_write[1], filler, sizeof filler), sizeof filler);
  g_event = eventfd(0, EFD_CLOEXEC);
  pthread_t thread[kCalls];
  for (int i = 0; i < kCalls; ++i) {
    thread[i] = start_thread(wait_in_call, &g_call[i]);
    while (__atomic_load_n(&g_call[i].tid, __ATOMIC_SEQ_CST) == 0) sleep_ms(1);
    wait_blocked_in(g_call[i].tid, g_call[i].number);
  }
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kCalls; ++i)
    if (g_call[i].returned) target_fail("%s returned before its time, errno %d", g_call[i].name, g_call[i].error);
  CHECK_EQUAL(write(g_read[1], "ping", 4), 4);
  CHECK_EQUAL(read(g_write[0], filler, sizeof filler), sizeof filler);
  CHECK_EQUAL(eventfd_write(g_event, 1), 0);
  for (int i = 0; i < kCalls; ++i) {
    if (g_call[i].wake != 0) CHECK_EQUAL(pthread_kill(thread[i], g_call[i].wake), 0);
    CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    if (g_call[i].result != 0) target_fail("%s: errno %d", g_call[i].name, g_call[i].error);
  }
  CHECK_EQUAL(g_handled, 2);
  for (char* c = filler; c < filler + sizeof filler; ++c) CHECK(*c == 'f');
  CHECK_EQUAL(read(g_write[0], filler, sizeof filler), 4096);
  target_pass();
}
