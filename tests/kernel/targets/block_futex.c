// Threads in futex waits of every kind: woken after the restore they return 0, and those with a time limit time out.
#include <linux/futex.h>

#include "target.h"

static struct Waiter {
  const char* name;
  int operation;
  bool timed, absolute, woken;
  uint32_t word;
  pid_t tid;
  long result;
  int error;
  int64_t start, end;
} g_waiter[] = {
    {.name = "private", .operation = FUTEX_WAIT_PRIVATE, .woken = true},
    {.name = "shared", .operation = FUTEX_WAIT, .woken = true},
    {.name = "private, limit far away", .operation = FUTEX_WAIT_PRIVATE, .timed = true, .woken = true},
    {.name = "bitset", .operation = FUTEX_WAIT_BITSET_PRIVATE, .woken = true},
    {.name = "relative limit", .operation = FUTEX_WAIT_PRIVATE, .timed = true},
    {.name = "absolute limit", .operation = FUTEX_WAIT_BITSET_PRIVATE, .timed = true, .absolute = true},
};
enum { kWaiters = sizeof g_waiter / sizeof g_waiter[0] };
static volatile bool g_end;
enum { kRestarts = 3 };  // a relative limit may start again at a restore: the time left is known to nobody
static const int64_t kLimit = 1200 * 1000000LL, kSlack = 1000 * 1000000LL;

static void* wait_word(void* argument) {
  struct Waiter* own = argument;
  own->start = now_ns();
  int64_t limit = own->woken ? 1000000000000 : kLimit + (own->absolute ? own->start : 0);
  struct timespec time = {limit / 1000000000, limit % 1000000000};
  __atomic_store_n(&own->tid, get_tid(), __ATOMIC_SEQ_CST);
  own->result = syscall(SYS_futex, &own->word, own->operation, 0, own->timed ? &time : NULL, NULL, 0x10);
  own->error = errno;
  own->end = now_ns();
  while (!g_end) sleep_ms(5);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_t thread[kWaiters];
  for (int i = 0; i < kWaiters; ++i) {
    thread[i] = start_thread(wait_word, &g_waiter[i]);
    while (__atomic_load_n(&g_waiter[i].tid, __ATOMIC_SEQ_CST) == 0) sleep_ms(1);
    wait_blocked_in(g_waiter[i].tid, SYS_futex);
  }
  sleep_ms(400);
  target_ready();
  target_wait(NULL);
  g_end = true;
  int64_t gap = target_gap_ns();
  for (int i = 0; i < kWaiters; ++i) {
    struct Waiter* own = &g_waiter[i];
    if (own->woken) {
      if (own->end == 0) wait_blocked_in(own->tid, SYS_futex);  // on its way back into the wait, perhaps
      own->word = 1;
      long woken = syscall(SYS_futex, &own->word, (own->operation & FUTEX_PRIVATE_FLAG) | FUTEX_WAKE, 1, NULL, NULL, 0);
      if (woken != 1) target_fail("%s: nobody waits (returned %ld, errno %d)", own->name, own->result, own->error);
    }
    CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    if (own->woken && own->result != 0) target_fail("%s: errno %d", own->name, own->error);
    if (own->woken) continue;
    if (own->result != -1 || own->error != ETIMEDOUT)
      target_fail("%s: returned %ld, errno %d", own->name, own->result, own->error);
    int64_t took = own->end - own->start;
    if (took < kLimit || took - gap > kLimit * (own->absolute ? 1 : kRestarts) + kSlack)
      target_fail("%s: timed out after %lld us, %lld of them gaps", own->name, (long long)took / 1000,
                  (long long)gap / 1000);
  }
  target_pass();
}
