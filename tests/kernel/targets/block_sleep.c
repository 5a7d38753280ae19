// Threads in nanosleep and clock_nanosleep: they return 0 after the time asked for, of which the time in which the
// process was not there is no part where the sleep is relative. A sleep to an absolute time ends when that time has
// come. Where the caller does not ask for the time left nobody outside can know it: that sleep may start again at a
// restore.
#include "target.h"

enum { kRestarts = 3 };  // restores of one process within a test, and the first run
static const int64_t kSleep = 1200 * 1000000LL, kSlack = 1000 * 1000000LL;
static struct Sleeper {
  int kind;
  pid_t tid;
  int result;
  int64_t start, end;
  struct timespec left;
} g_sleeper[4];
static volatile bool g_end;

static void* sleep_once(void* argument) {
  struct Sleeper* own = argument;
  struct timespec ask = {kSleep / 1000000000, kSleep % 1000000000};
  own->start = now_ns();
  own->tid = get_tid();
  if (own->kind == 0) own->result = nanosleep(&ask, &own->left) == 0 ? 0 : errno;
  if (own->kind == 1) own->result = clock_nanosleep(CLOCK_MONOTONIC, 0, &ask, &own->left);
  if (own->kind == 2) own->result = clock_nanosleep(CLOCK_REALTIME, 0, &ask, NULL);
  if (own->kind == 3) {
    int64_t until = own->start + kSleep;
    ask.tv_sec = until / 1000000000, ask.tv_nsec = until % 1000000000;
    own->result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ask, NULL);
  }
  own->end = now_ns();
  while (!g_end) sleep_ms(5);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_t thread[4];
  for (int i = 0; i < 4; ++i) {
    g_sleeper[i].kind = i;
    thread[i] = start_thread(sleep_once, &g_sleeper[i]);
  }
  sleep_ms(600);
  target_ready();
  target_wait(NULL);
  g_end = true;
  for (int i = 0; i < 4; ++i) {
    struct Sleeper* own = &g_sleeper[i];
    int64_t gap_until_check = target_gap_ns();
    CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    int64_t took = own->end - own->start;
    if (own->result != 0) target_fail("sleep of kind %d returned %d", i, own->result);
    if (took < kSleep) target_fail("sleep of kind %d ended after %lld us", i, (long long)took / 1000);
    if (took - gap_until_check > kSleep * (i == 2 ? kRestarts : 1) + kSlack)
      target_fail("sleep of kind %d took %lld us, %lld of them gaps", i, (long long)took / 1000,
                  (long long)gap_until_check / 1000);
  }
  target_pass();
}
