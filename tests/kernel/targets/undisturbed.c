// What a program could notice of being stopped and made to work for somebody else, all at once and at full speed:
// counters in restartable sequences, timers of half a millisecond whose handler is on a stack of its own, queued
// signals in order, a robust mutex, calls that a mere stop breaks off, a child that is stopped and continued all the
// time, words just below the stack that the first thread is on. The runner takes an image of it again and again;
// nothing may be lost.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "rseq_counters.h"
#include "target.h"

enum { kCounters = 2, kTimerNs = 500000, kWords = 4096, kStack = 64 * 1024 };
static intptr_t g_added[kCounters];
static volatile bool g_stop;

static void nap_us(long us) {
  struct timespec time = {0, us * 1000};
  long result;
  // Without the C library, whose first call of a function takes more stack than there is in `wait_at_the_end`.
  __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_nanosleep), "D"(&time), "S"(NULL) : "rcx", "r11", "memory");
}

// Counters in restartable sequences.

static void* count_in_sequences(void* added) {
  struct rseq* area = own_rseq();
  while (!g_stop) {
    if (add_one(area, 20000)) ++*(intptr_t*)added;
  }
  return NULL;
}

// A timer, its expiries counted in a handler that must be on the alternate stack.

static __thread char* t_stack;
static volatile int64_t g_expiries, g_wrong_stack;
static timer_t g_timer;

static void on_timer(int number) {
  (void)number;
  char here;
  if (&here < t_stack || &here >= t_stack + kStack) ++g_wrong_stack;
  g_expiries += 1 + timer_getoverrun(g_timer);
}

static void* take_timer(void* unused) {
  t_stack = map_pages(kStack);
  stack_t stack = {.ss_sp = t_stack, .ss_size = kStack, .ss_flags = (int)(1u << 31)};  // SS_AUTODISARM
  CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
  event._sigev_un._tid = get_tid();
  CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &g_timer), 0);
  struct itimerspec every = {{0, kTimerNs}, {0, kTimerNs}};
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  const int64_t begin = now_ns();
  CHECK_EQUAL(timer_settime(g_timer, 0, &every, NULL), 0);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  volatile uint64_t spin = 0;
  while (!g_stop) ++spin;
  nap_us(5000);  // what has expired is delivered now
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  const int64_t expected = (now_ns() - begin) / kTimerNs;
  every.it_value.tv_nsec = every.it_interval.tv_nsec = 0;
  CHECK_EQUAL(timer_settime(g_timer, 0, &every, NULL), 0);
  if (g_expiries < expected - 20 || g_expiries > expected + 1)
    target_fail("the timer expired %lld times, not %lld", (long long)g_expiries, (long long)expected);
  CHECK_EQUAL(g_wrong_stack, 0);
  return unused;
}

// Queued signals, each with its number.

static volatile int g_sent, g_taken;

static void on_queued(int number, siginfo_t* info, void* unused) {
  (void)number, (void)unused;
  if (info->si_value.sival_int != g_taken)
    target_fail("signal %d came as number %d", info->si_value.sival_int, g_taken);
  ++g_taken;
}

static void* send_signals(void* unused) {
  while (!g_stop) {
    for (int i = 0; i < 8; ++i) CHECK_EQUAL(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = g_sent++}), 0);
    while (g_taken != g_sent && !g_stop) sched_yield();
  }
  return unused;
}

// A robust mutex over a plain counter.

static pthread_mutex_t g_mutex;
static int64_t g_guarded, g_entered[2];

static void* use_mutex(void* entered) {
  while (!g_stop) {
    CHECK_EQUAL(pthread_mutex_lock(&g_mutex), 0);
    const int64_t before = g_guarded;
    for (volatile int i = 0; i < 50; ++i) {
    }
    g_guarded = before + 1;
    CHECK_EQUAL(pthread_mutex_unlock(&g_mutex), 0);
    ++*(int64_t*)entered;
  }
  return NULL;
}

// Calls that the kernel ends with EINTR where a thread is stopped, be it by nobody's signal.

static int g_pair[2];

static void* receive(void* unused) {
  struct timeval patience = {30, 0};
  CHECK_EQUAL(setsockopt(g_pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, g_pair[0], &event), 0);
  unsigned char byte, wanted = 0;
  for (bool waits = false; !g_stop; waits = !waits) {
    if (waits) CHECK_EQUAL(epoll_wait(epoll, &event, 1, 30000), 1);
    CHECK_EQUAL(recv(g_pair[0], &byte, 1, 0), 1);
    CHECK_EQUAL(byte, wanted++);
  }
  return unused;
}

static void* send_bytes(void* unused) {
  int after = 0;
  for (unsigned char byte = 0; after < 4; ++byte) {  // the receiver waits for one when it is told to stop
    if (g_stop) ++after;
    CHECK_EQUAL(send(g_pair[1], &byte, 1, 0), 1);
    nap_us(700);
  }
  return unused;
}

// A child that is stopped and continued: its parent hears of each.

static int idle(void* unused) {
  (void)unused;
  child_ready();
  while (!g_stop) sleep_ms(1000);
  return 0;
}

static pid_t g_child;

static void* stop_child(void* unused) {
  siginfo_t info;
  while (!g_stop) {
    CHECK_EQUAL(kill(g_child, SIGSTOP), 0);
    CHECK_EQUAL(waitid(P_PID, (id_t)g_child, &info, WSTOPPED), 0);
    CHECK_EQUAL(info.si_status, SIGSTOP);
    CHECK_EQUAL(kill(g_child, SIGCONT), 0);
    CHECK_EQUAL(waitid(P_PID, (id_t)g_child, &info, WCONTINUED), 0);
  }
  return unused;
}

// The first thread on a stack that ends where somebody else's words begin.

static struct {
  volatile int64_t words[kWords];
  char stack[kStack];
} __attribute__((aligned(4096))) g_small;
static int64_t g_word_rounds;
static ucontext_t g_main, g_coroutine;

static void* count_words(void* unused) {
  while (!g_stop) {
    for (int i = 0; i < kWords; ++i) g_small.words[i] = g_small.words[i] + 1;
    ++g_word_rounds;
  }
  return unused;
}

static __attribute__((noinline)) void wait_at_the_end(void) {
  while (!g_stop) nap_us(300);
}

static void coroutine(void) {
  char here;
  volatile char* room = __builtin_alloca((size_t)(&here - g_small.stack) - 1024);
  room[0] = 1;
  wait_at_the_end();
}

static void* talk(void* unused) {
  target_wait(NULL);
  g_stop = true;
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (__rseq_size == 0 || (int)own_rseq()->cpu_id < 0) target_skip("rseq is not registered on this system");
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&g_mutex, &robust);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, g_pair), 0);
  g_child = start_child(idle, NULL);
  struct sigaction timer = {.sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART};
  struct sigaction queued = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaddset(&queued.sa_mask, SIGUSR2);  // any handler's frame disarms the alternate stack
  CHECK_EQUAL(sigaction(SIGUSR2, &timer, NULL), 0);
  CHECK_EQUAL(sigaction(SIGRTMIN + 3, &queued, NULL), 0);
  sigset_t set, old;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &set, &old);  // but for one thread, or they would be taken side by side
  pthread_t threads[12];
  int count = 0;
  for (int i = 0; i < kCounters; ++i) threads[count++] = start_thread(count_in_sequences, &g_added[i]);
  threads[count++] = start_thread(send_signals, NULL);
  for (int i = 0; i < 2; ++i) threads[count++] = start_thread(use_mutex, &g_entered[i]);
  threads[count++] = start_thread(receive, NULL);
  threads[count++] = start_thread(send_bytes, NULL);
  threads[count++] = start_thread(stop_child, NULL);
  threads[count++] = start_thread(count_words, NULL);
  threads[count++] = start_thread(talk, NULL);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  threads[count++] = start_thread(take_timer, NULL);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  target_ready();
  CHECK_EQUAL(getcontext(&g_coroutine), 0);
  g_coroutine.uc_stack.ss_sp = g_small.stack, g_coroutine.uc_stack.ss_size = kStack;
  g_coroutine.uc_link = &g_main;
  makecontext(&g_coroutine, coroutine, 0);
  CHECK_EQUAL(swapcontext(&g_main, &g_coroutine), 0);
  for (int i = 0; i < count; ++i) CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
  intptr_t added = 0, counted = 0;
  for (int i = 0; i < kCounters; ++i) added += g_added[i];
  for (int i = 0; i < kMaxCpus; ++i) counted += g_count[i].value;
  CHECK(added > 0);
  CHECK_EQUAL(counted, added);
  CHECK_EQUAL(g_guarded, g_entered[0] + g_entered[1]);
  for (int i = 0; i < kWords; ++i) CHECK_EQUAL(g_small.words[i], g_word_rounds);
  CHECK_EQUAL(kill(g_child, SIGKILL), 0);
  expect_signal(g_child, SIGKILL);
  target_pass();
}
