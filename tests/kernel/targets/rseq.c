// glibc's registration of restartable sequences: the kernel goes on to keep cpu_id right, and counters that are raised in
// critical sections lose nothing.
#include <sched.h>
#include <stddef.h>
#include <sys/rseq.h>

#include "target.h"

enum { kThreads = 4, kMaxCpus = 1024 };
static struct {
  intptr_t value;
  char pad[56];
} g_count[kMaxCpus];
static intptr_t g_added[kThreads];
static volatile bool g_stop;

static struct rseq* own_rseq(void) {
  char* thread_pointer;
  __asm__("mov %%fs:0, %0" : "=r"(thread_pointer));
  return (struct rseq*)(thread_pointer + __rseq_offset);
}

/// Adds one to counter[cpu_id] without a locked instruction. False: it was interrupted, try again.
static bool add_one(struct rseq* area) {
  __asm__ goto(
      ".pushsection __rseq_cs, \"aw\"\n.balign 32\n"
      "3: .long 0, 0\n.quad 1f, 2f-1f, 4f\n.popsection\n"
      "lea 3b(%%rip), %%rax\nmov %%rax, %c[cs](%[area])\n"
      "1: mov %c[cpu](%[area]), %%eax\nshl $6, %%rax\n"
      "mov (%[base],%%rax), %%rdx\n"
      "mov $2000, %%ecx\n5: dec %%ecx\njnz 5b\n"  // so long that a stop is likely to come in the middle
      "addq $1, %%rdx\nmov %%rdx, (%[base],%%rax)\n"
      "2:\n"
      ".pushsection __rseq_failure, \"ax\"\n"
      ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
      "4: jmp %l[interrupted]\n.popsection\n"
      :
      : [area] "r"(area), [base] "r"(&g_count[0]), [cs] "i"(offsetof(struct rseq, rseq_cs)),
        [cpu] "i"(offsetof(struct rseq, cpu_id))
      : "rax", "rcx", "rdx", "memory", "cc"
      : interrupted);
  return true;
interrupted:
  return false;
}

static void* add(void* argument) {
  intptr_t* added = argument;
  struct rseq* area = own_rseq();
  while (!g_stop) {
    for (int i = 0; i < 1000; ++i)
      if (add_one(area)) ++*added;
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
