// Counters, one for each processor, that are raised in restartable sequences: not atomic, and right only if the kernel
// sends a thread that was interrupted in the middle back to the beginning.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/rseq.h>

enum { kMaxCpus = 1024 };
static struct {
  intptr_t value;
  char pad[56];
} g_count[kMaxCpus];

static struct rseq* own_rseq(void) {
  char* thread_pointer;
  __asm__("mov %%fs:0, %0" : "=r"(thread_pointer));
  return (struct rseq*)(thread_pointer + __rseq_offset);
}

/// Adds one to g_count[cpu_id] without a locked instruction, with so many turns of a loop in the middle that a stop is
/// likely to come there. False: it was interrupted, try again.
static inline bool add_one(struct rseq* area, int64_t turns) {
  __asm__ goto(
      ".pushsection __rseq_cs, \"aw\"\n.balign 32\n"
      "3: .long 0, 0\n.quad 1f, 2f-1f, 4f\n.popsection\n"
      "lea 3b(%%rip), %%rax\nmov %%rax, %c[cs](%[area])\n"
      "1: mov %c[cpu](%[area]), %%eax\nshl $6, %%rax\n"
      "mov (%[base],%%rax), %%rdx\n"
      "mov %[turns], %%rcx\n5: dec %%rcx\njnz 5b\n"
      "addq $1, %%rdx\nmov %%rdx, (%[base],%%rax)\n"
      "2:\n"
      ".pushsection __rseq_failure, \"ax\"\n"
      ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
      "4: jmp %l[interrupted]\n.popsection\n"
      :
      : [area] "r"(area), [base] "r"(&g_count[0]), [turns] "r"(turns), [cs] "i"(offsetof(struct rseq, rseq_cs)),
        [cpu] "i"(offsetof(struct rseq, cpu_id))
      : "rax", "rcx", "rdx", "memory", "cc"
      : interrupted);
  return true;
interrupted:
  return false;
}
