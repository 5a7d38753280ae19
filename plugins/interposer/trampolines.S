// The entry points: `cuX` jumps through its slot. A slot holds at first the way to the resolver, which loads the driver and
// fills all of them; then the driver's own function, or our wrapper of it.
#define SAVE_ARGUMENTS \
  pushq %rbp; movq %rsp, %rbp; andq $-16, %rsp; \
  pushq %rdi; pushq %rsi; pushq %rdx; pushq %rcx; pushq %r8; pushq %r9; pushq %rax; pushq %r10; \
  subq $128, %rsp; \
  movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp); \
  movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)
#define RESTORE_ARGUMENTS \
  movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3; \
  movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7; \
  addq $128, %rsp; \
  popq %r10; popq %rax; popq %r9; popq %r8; popq %rcx; popq %rdx; popq %rsi; popq %rdi; \
  movq %rbp, %rsp; popq %rbp

  .text
#define CKPT_NAME(entry, words) \
  .globl entry; .type entry, @function; .p2align 4; \
  entry: endbr64; jmp *slot_##entry(%rip); .size entry, .-entry;
#include "names.inc"
#undef CKPT_NAME

  .p2align 4
  .set index, 0
#define CKPT_NAME(entry, words) first_##entry: endbr64; pushq $index; jmp first_call; .set index, index + 1;
#include "names.inc"
#undef CKPT_NAME

// On the stack: the index, the caller's return address, the caller's arguments beyond six.
  .type first_call, @function
first_call:
  SAVE_ARGUMENTS
  movq 8(%rbp), %rdi
  call ckpt_resolve
  movq %rax, %r11
  RESTORE_ARGUMENTS
  addq $8, %rsp
  jmp *%r11
  .size first_call, .-first_call

// dlopen and dlsym depend on who calls them (its search path, what RTLD_NEXT is): the real ones are jumped to, not called.
  .globl dlopen
  .type dlopen, @function
  .p2align 4
dlopen:
  endbr64
  pushq %rbp
  pushq %rsi
  subq $8, %rsp
  call ckpt_dlopen_name  // the name to load; sets ckpt_real_dlopen
  addq $8, %rsp
  popq %rsi
  popq %rbp
  movq %rax, %rdi
  jmp *ckpt_real_dlopen(%rip)
  .size dlopen, .-dlopen

  .globl dlsym
  .type dlsym, @function
  .p2align 4
dlsym:
  endbr64
  cmpq ckpt_self_handle(%rip), %rdi
  je ckpt_dlsym_of_driver
  movq ckpt_real_dlsym(%rip), %rax
  testq %rax, %rax
  jz 1f
  jmp *%rax
1:
  pushq %rdi
  pushq %rsi
  subq $8, %rsp
  call ckpt_find_dlsym
  addq $8, %rsp
  popq %rsi
  popq %rdi
  jmp *%rax
  .size dlsym, .-dlsym

// The slots, in the order of names.inc.
  .data
  .p2align 6
  .globl ckpt_slots
ckpt_slots:
#define CKPT_NAME(entry, words) slot_##entry: .quad first_##entry;
#include "names.inc"
#undef CKPT_NAME
  .size ckpt_slots, .-ckpt_slots
  .type ckpt_slots, @object

  .section .note.GNU-stack, "", @progbits
