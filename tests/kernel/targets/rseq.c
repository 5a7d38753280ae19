// glibc's registration of restartable sequences: the kernel goes on to keep cpu_id right, and counters that are raised
// in critical sections lose nothing.
#include <sched.h>

#include "rseq_counters.h"
#include "target.h"

enum { kThreads = 4 };
static intptr_t g_added[kThreads];
static volatile bool g_stop;

static void* add(void* argument) {
  intptr_t* added = argument;
  struct rseq* area = own_rseq();
  while (!g_stop) {
    for (int i = 0; i < 1000; ++i)
      if (add_one(area, 2000)) ++*added;
    sched_yield();
  }
  return NULL;
}

static void check_cpu_id(void) {
  cpu_set_t before, one;
  CHECK_EQUAL(sched_getaffinity(0, sizeof before, &before), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
    sched_yield();
    CHECK_EQUAL(((volatile struct rseq*)own_rseq())->cpu_id, cpu);
  }
  CHECK_EQUAL(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (__rseq_size == 0 || (int)own_rseq()->cpu_id < 0) target_skip("rseq is not registered on this system");
  check_cpu_id();
  pthread_t thread[kThreads];
  for (int i = 0; i < kThreads; ++i) thread[i] = start_thread(add, &g_added[i]);
  target_ready();
  target_wait(NULL);
  intptr_t before = g_added[0];
  sleep_ms(100);
  CHECK(((volatile intptr_t*)g_added)[0] > before);
  g_stop = true;
  intptr_t added = 0, counted = 0;
  for (int i = 0; i < kThreads; ++i) {
    CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    added += g_added[i];
  }
  for (int i = 0; i < kMaxCpus; ++i) counted += g_count[i].value;
  CHECK_EQUAL(counted, added);
  check_cpu_id();
  target_pass();
}
