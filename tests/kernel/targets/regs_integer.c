// Fourteen general registers and the direction and carry flags stay live in a loop without memory or calls.
#include "target.h"

uint64_t regs_wanted[14], regs_found[14];
uint64_t regs_flags;
volatile int regs_stop;

// rsp and rcx are not free: rcx takes the stop flag, because `jrcxz` leaves the flags alone.
__asm__(
    ".text\n.globl regs_spin\n.type regs_spin,@function\nregs_spin:\n"
    "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "lea regs_wanted(%rip), %rcx\n"
    "mov 0(%rcx), %rax\nmov 8(%rcx), %rbx\nmov 16(%rcx), %rdx\nmov 24(%rcx), %rsi\nmov 32(%rcx), %rdi\n"
    "mov 40(%rcx), %rbp\nmov 48(%rcx), %r8\nmov 56(%rcx), %r9\nmov 64(%rcx), %r10\nmov 72(%rcx), %r11\n"
    "mov 80(%rcx), %r12\nmov 88(%rcx), %r13\nmov 96(%rcx), %r14\nmov 104(%rcx), %r15\n"
    "std\nstc\n"
    "1: movslq regs_stop(%rip), %rcx\njrcxz 1b\n"
    "pushfq\npopq regs_flags(%rip)\ncld\n"
    "lea regs_found(%rip), %rcx\n"
    "mov %rax, 0(%rcx)\nmov %rbx, 8(%rcx)\nmov %rdx, 16(%rcx)\nmov %rsi, 24(%rcx)\nmov %rdi, 32(%rcx)\n"
    "mov %rbp, 40(%rcx)\nmov %r8, 48(%rcx)\nmov %r9, 56(%rcx)\nmov %r10, 64(%rcx)\nmov %r11, 72(%rcx)\n"
    "mov %r12, 80(%rcx)\nmov %r13, 88(%rcx)\nmov %r14, 96(%rcx)\nmov %r15, 104(%rcx)\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
    ".size regs_spin,.-regs_spin\n");
void regs_spin(void);

static void* spin(void* unused) {
  regs_spin();
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < 14; ++i) regs_wanted[i] = mix((uint64_t)getpid(), (uint64_t)i);
  pthread_t thread = start_thread(spin, NULL);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  regs_stop = 1;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  for (int i = 0; i < 14; ++i)
    if (regs_found[i] != regs_wanted[i]) target_fail("register %d lost its value", i);
  CHECK_EQUAL(regs_flags & 0x401, 0x401);
  target_pass();
}
