// The vector registers stay live in a loop, in the widest form that the CPU has: AVX-512 with its masks, AVX, or SSE.
#include "target.h"

volatile int vector_stop;
uint8_t vector_wanted[32][64] __attribute__((aligned(64))), vector_found[32][64] __attribute__((aligned(64)));
uint64_t mask_wanted[8], mask_found[8];

#define EACH_16(insn, reg, width)                                                                              \
  insn(0, reg, width) insn(1, reg, width) insn(2, reg, width) insn(3, reg, width) insn(4, reg, width)         \
  insn(5, reg, width) insn(6, reg, width) insn(7, reg, width) insn(8, reg, width) insn(9, reg, width)         \
  insn(10, reg, width) insn(11, reg, width) insn(12, reg, width) insn(13, reg, width) insn(14, reg, width)    \
  insn(15, reg, width)
#define UPPER_16(insn, reg, width)                                                                             \
  insn(16, reg, width) insn(17, reg, width) insn(18, reg, width) insn(19, reg, width) insn(20, reg, width)    \
  insn(21, reg, width) insn(22, reg, width) insn(23, reg, width) insn(24, reg, width) insn(25, reg, width)    \
  insn(26, reg, width) insn(27, reg, width) insn(28, reg, width) insn(29, reg, width) insn(30, reg, width)    \
  insn(31, reg, width)
#define LOAD(n, reg, move) #move " " #n "*64(%rax), %" #reg #n "\n"
#define STORE(n, reg, move) #move " %" #reg #n ", " #n "*64(%rax)\n"
#define MASK_LOAD(n) "kmovq " #n "*8(%rcx), %k" #n "\n"
#define MASK_STORE(n) "kmovq %k" #n ", " #n "*8(%rcx)\n"
#define MASKS(insn) insn(1) insn(2) insn(3) insn(4) insn(5) insn(6) insn(7)
#define SPIN(name, load, store)                                                                                \
  __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                                   \
          "lea vector_wanted(%rip), %rax\nlea mask_wanted(%rip), %rcx\n" load                                  \
          "1: cmpl $0, vector_stop(%rip)\nje 1b\n"                                                             \
          "lea vector_found(%rip), %rax\nlea mask_found(%rip), %rcx\n" store "ret\n.size " #name ",.-" #name "\n"); \
  void name(void)

SPIN(spin_avx512, EACH_16(LOAD, zmm, vmovdqa64) UPPER_16(LOAD, zmm, vmovdqa64) MASKS(MASK_LOAD),
     EACH_16(STORE, zmm, vmovdqa64) UPPER_16(STORE, zmm, vmovdqa64) MASKS(MASK_STORE) "vzeroupper\n");
SPIN(spin_avx, EACH_16(LOAD, ymm, vmovdqa), EACH_16(STORE, ymm, vmovdqa) "vzeroupper\n");
SPIN(spin_sse, EACH_16(LOAD, xmm, movdqa), EACH_16(STORE, xmm, movdqa));

static void* run(void* body) {
  void (*spin)(void);
  memcpy(&spin, body, sizeof spin);
  spin();
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(vector_wanted, sizeof vector_wanted, (uint64_t)getpid());
  for (int i = 1; i < 8; ++i) mask_wanted[i] = mix(7, (uint64_t)i);
  void (*spin)(void) = spin_sse;
  int registers = 16, width = 16, masks = 0;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    spin = spin_avx512, registers = 32, width = 64, masks = 7;
  } else if (__builtin_cpu_supports("avx")) {
    spin = spin_avx, width = 32;
  }
  dprintf(1, "%d registers of %d bytes\n", registers, width);
  pthread_t thread = start_thread(run, &spin);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  vector_stop = 1;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  for (int i = 0; i < registers; ++i)
    if (memcmp(vector_found[i], vector_wanted[i], (size_t)width) != 0) target_fail("vector register %d differs", i);
  for (int i = 1; i <= masks; ++i)
    if (mask_found[i] != mask_wanted[i]) target_fail("mask register %d differs", i);
  target_pass();
}
