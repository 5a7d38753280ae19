// Processes in pid namespaces within the root's: by clone, by unshare, side by side and two deep. Each goes on with the
// numbers that it has there, of itself and of others.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "target.h"

struct Shared {
  volatile int ready, go, group_ends, unshared_ends, adopted_number, daemon_session;
};
static struct Shared* g_shared;

static void say_ready(void) { __atomic_add_fetch(&g_shared->ready, 1, __ATOMIC_SEQ_CST); }
static void await_ready(int count) {
  for (int i = 0; i < 20000 && g_shared->ready < count; ++i) sleep_ms(1);
  CHECK(g_shared->ready >= count);
}
static void await_go(void) {
  while (!g_shared->go) sleep_ms(2);
}

struct Numbers {
  pid_t pid, parent, group, session;
};
static struct Numbers numbers(void) { return (struct Numbers){getpid(), getppid(), getpgrp(), getsid(0)}; }
static void expect_numbers(struct Numbers was) {
  const struct Numbers is = numbers();
  CHECK_EQUAL(is.pid, was.pid);
  CHECK_EQUAL(is.parent, was.parent);
  CHECK_EQUAL(is.group, was.group);
  CHECK_EQUAL(is.session, was.session);
  CHECK_EQUAL(syscall(SYS_getpid), was.pid);
}

static pid_t fork_in(int flags, int (*body)(void)) {
  const pid_t child = (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
  if (child == 0) _exit(body());
  CHECK(child > 0);
  return child;
}

/// In a group of its own, with a signal of its parent's that waits, and a lock.
static int grouped(void) {
  CHECK_EQUAL(setpgid(0, 0), 0);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  CHECK_EQUAL(sigprocmask(SIG_BLOCK, &set, NULL), 0);
  const int fd = open("lock", O_RDWR | O_CREAT, 0600);
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
  CHECK_EQUAL(fcntl(fd, F_SETLK, &lock), 0);
  const struct Numbers was = numbers();
  say_ready();
  await_go();
  expect_numbers(was);
  siginfo_t info;
  const struct timespec none = {0, 0};
  CHECK_EQUAL(sigtimedwait(&set, &info, &none), SIGUSR1);
  CHECK_EQUAL(info.si_pid, was.parent);
  while (!g_shared->group_ends) sleep_ms(2);
  return 11;
}

/// Its session's leader has ended; it was adopted by the first process here.
static int left_behind(void) {
  while (getppid() != 1) sleep_ms(1);
  const struct Numbers was = numbers();
  CHECK(was.session != was.pid && was.session != 0);
  g_shared->adopted_number = was.pid, g_shared->daemon_session = was.session;
  say_ready();
  await_go();
  expect_numbers(was);
  return 12;
}
static int leads_and_ends(void) {
  CHECK(setsid() > 0);
  fork_in(0, left_behind);
  return 0;
}

static int sleeper(void) {
  const struct Numbers was = numbers();
  say_ready();
  await_go();
  expect_numbers(was);
  return 13;
}

/// The first process of a namespace in the other one: nothing of what is further out has a number.
static int deeper(void) {
  CHECK_EQUAL(getpid(), 1);
  CHECK_EQUAL(getppid(), 0);
  const pid_t child = fork_in(0, sleeper);
  CHECK_EQUAL(child, 2);
  const struct Numbers was = numbers();
  CHECK_EQUAL(was.session, 0);
  say_ready();
  await_go();
  expect_numbers(was);
  CHECK_EQUAL(kill(child, 0), 0);
  expect_exit(child, 13);
  return 14;
}

static volatile int g_ticks, g_wrong;
static volatile pid_t g_thread;
static void tick(int number) {
  (void)number;
  if (get_tid() != g_thread) ++g_wrong;
  ++g_ticks;
}
static void* told(void* made) {
  g_thread = get_tid();
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGURG};
  event._sigev_un._tid = g_thread;
  timer_t timer;
  CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const struct itimerspec every = {.it_interval.tv_nsec = 5000000, .it_value.tv_nsec = 5000000};
  CHECK_EQUAL(timer_settime(timer, 0, &every, NULL), 0);
  *(volatile int*)made = 1;
  const pid_t was = g_thread;
  await_go();
  CHECK_EQUAL(get_tid(), was);
  const int ticks = g_ticks;
  for (int i = 0; i < 5000 && g_ticks == ticks; ++i) sleep_ms(1);
  CHECK(g_ticks > ticks);
  CHECK_EQUAL(g_wrong, 0);
  return NULL;
}

static int ends_at_once(void) { return 15; }

/// The first process, with threads, all kinds of children, and descriptors that tell it or them.
static int first(void) {
  CHECK_EQUAL(getpid(), 1);
  CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
  const int before = g_shared->ready;
  const pid_t child = fork_in(0, grouped);
  await_ready(before + 1);
  CHECK_EQUAL(sigqueue(child, SIGUSR1, (union sigval){.sival_int = 5}), 0);
  const pid_t leader = fork_in(0, leads_and_ends);
  expect_exit(leader, 0);
  const pid_t zombie = fork_in(0, ends_at_once);
  const pid_t inner = fork_in(CLONE_NEWPID, deeper);
  const int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
  CHECK(pidfd >= 0);
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  CHECK_EQUAL(fcntl(ends[0], F_SETOWN, child), 0);
  CHECK_EQUAL(fcntl(ends[1], F_SETOWN, -child), 0);
  await_ready(before + 4);
  volatile int made = 0;
  const struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
  CHECK_EQUAL(sigaction(SIGURG, &action, NULL), 0);
  const pthread_t thread = start_thread(told, (void*)&made);
  while (!made) sleep_ms(1);
  siginfo_t info;
  CHECK_EQUAL(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT), 0);
  const struct Numbers was = numbers();
  say_ready();
  await_go();
  expect_numbers(was);
  expect_exit(zombie, 15);
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
  CHECK_EQUAL(fcntl(open("lock", O_RDWR), F_GETLK, &lock), 0);
  CHECK_EQUAL(lock.l_pid, child);
  CHECK_EQUAL(fcntl(ends[0], F_GETOWN), child);
  CHECK_EQUAL(fcntl(ends[1], F_GETOWN), -child);
  CHECK_EQUAL(getpgid(child), child);
  CHECK_EQUAL(getsid(g_shared->adopted_number), g_shared->daemon_session);
  CHECK_EQUAL(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0), 0);
  g_shared->group_ends = 1;
  CHECK_EQUAL(waitid((idtype_t)3, (id_t)pidfd, &info, WEXITED), 0);  // P_PIDFD
  CHECK_EQUAL(info.si_pid, child);
  CHECK_EQUAL(info.si_status, 11);
  expect_exit(g_shared->adopted_number, 12);
  expect_exit(inner, 14);
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  expect_childless();
  return 16;
}

static int first_of_unshared(void) {
  CHECK_EQUAL(getpid(), 1);
  CHECK_EQUAL(getppid(), 0);
  const struct Numbers was = numbers();
  say_ready();
  await_go();
  expect_numbers(was);
  while (!g_shared->unshared_ends) sleep_ms(2);
  return 17;
}
static int born_later(void) { return getpid() > 1 && getppid() == 0 ? 18 : 1; }
/// It is outside, and its children are born inside.
static int unshares(void) {
  CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
  CHECK_EQUAL(unshare(CLONE_NEWPID), 0);
  const int before = g_shared->ready;
  const pid_t child = fork_in(0, first_of_unshared);
  const pid_t second = fork_in(0, sleeper);
  await_ready(before + 2);
  const struct Numbers was = numbers();
  say_ready();
  await_go();
  expect_numbers(was);
  expect_exit(second, 13);
  const pid_t third = fork_in(0, born_later);
  expect_exit(third, 18);
  g_shared->unshared_ends = 1;
  expect_exit(child, 17);
  return 19;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const pid_t tried = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
  if (tried == 0) _exit(0);
  if (tried < 0) target_skip("no pid namespaces: errno %d", errno);
  expect_exit(tried, 0);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  const pid_t one = fork_in(CLONE_NEWPID, first);
  await_ready(5);
  const pid_t other = fork_in(CLONE_NEWPID, deeper);
  await_ready(7);
  const pid_t third = fork_in(0, unshares);
  await_ready(10);
  target_ready();
  target_wait(NULL);
  g_shared->go = 1;
  expect_exit(one, 16);
  expect_exit(other, 14);
  expect_exit(third, 19);
  expect_childless();
  target_pass();
}
