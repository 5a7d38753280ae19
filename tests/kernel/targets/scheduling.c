// Policy, priority, nice value, reset-on-fork, affinity and I/O priority, of each thread its own.
#include <sched.h>
#include <sys/resource.h>

#include "target.h"

enum { kIoprioWho = 1, kIoprioClassShift = 13 };
static volatile int g_phase;
static bool g_fifo;

static long io_priority(void) { return syscall(SYS_ioprio_get, kIoprioWho, 0); }

static void* batch(void* unused) {
  const struct sched_param none = {0};
  cpu_set_t set, found;
  CHECK_EQUAL(sched_getaffinity(0, sizeof set, &set), 0);
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) last = cpu;
  CPU_ZERO(&set);
  CPU_SET(last, &set);
  CHECK_EQUAL(sched_setaffinity(0, sizeof set, &set), 0);
  CHECK_EQUAL(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none), 0);
  CHECK_EQUAL(setpriority(PRIO_PROCESS, 0, 7), 0);
  CHECK_EQUAL(syscall(SYS_ioprio_set, kIoprioWho, 0, 2 << kIoprioClassShift | 6), 0);
  __atomic_add_fetch(&g_phase, 1, __ATOMIC_SEQ_CST);
  while (g_phase < 10) sleep_ms(2);
  CHECK_EQUAL(sched_getscheduler(0), SCHED_BATCH | SCHED_RESET_ON_FORK);
  CHECK_EQUAL(getpriority(PRIO_PROCESS, 0), 7);
  CHECK_EQUAL(sched_getaffinity(0, sizeof found, &found), 0);
  CHECK(CPU_EQUAL(&set, &found));
  CHECK_EQUAL(io_priority(), 2 << kIoprioClassShift | 6);
  return unused;
}

static void* fifo(void* unused) {
  const struct sched_param priority = {.sched_priority = 3};
  struct sched_param found;
  g_fifo = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
  __atomic_add_fetch(&g_phase, 1, __ATOMIC_SEQ_CST);
  while (g_phase < 10) sleep_ms(2);
  if (!g_fifo) return unused;
  CHECK_EQUAL(sched_getscheduler(0), SCHED_FIFO);
  CHECK_EQUAL(sched_getparam(0, &found), 0);
  CHECK_EQUAL(found.sched_priority, 3);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_t first = start_thread(batch, NULL), second = start_thread(fifo, NULL);
  while (g_phase < 2) sleep_ms(1);
  cpu_set_t set, found;
  CHECK_EQUAL(sched_getaffinity(0, sizeof set, &set), 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(sched_getscheduler(0), SCHED_OTHER);
  CHECK_EQUAL(getpriority(PRIO_PROCESS, 0), 0);
  CHECK_EQUAL(sched_getaffinity(0, sizeof found, &found), 0);
  CHECK(CPU_EQUAL(&set, &found));
  g_phase = 10;
  CHECK_EQUAL(pthread_join(first, NULL), 0);
  CHECK_EQUAL(pthread_join(second, NULL), 0);
  target_pass();
}
