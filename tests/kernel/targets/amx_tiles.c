// Live AMX tiles in one thread, permission without live tiles in another.
#include <cpuid.h>

#include "target.h"

#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

volatile int amx_stop;
uint8_t amx_wanted[8][1024] __attribute__((aligned(64))), amx_found[8][1024] __attribute__((aligned(64)));
uint8_t amx_config[64] __attribute__((aligned(64))), amx_config_found[64] __attribute__((aligned(64)));

#define LOAD(n) "lea amx_wanted+" #n "*1024(%rip), %rax\ntileloadd (%rax,%rdx,1), %tmm" #n "\n"
#define STORE(n) "lea amx_found+" #n "*1024(%rip), %rax\ntilestored %tmm" #n ", (%rax,%rdx,1)\n"
#define TILES(insn) insn(0) insn(1) insn(2) insn(3) insn(4) insn(5) insn(6) insn(7)
__asm__(
    ".text\n.globl amx_spin\n.type amx_spin,@function\namx_spin:\n"
    "ldtilecfg amx_config(%rip)\nmov $64, %edx\n" TILES(LOAD)
    "1: cmpl $0, amx_stop(%rip)\nje 1b\n"
    "sttilecfg amx_config_found(%rip)\n" TILES(STORE) "tilerelease\nret\n.size amx_spin,.-amx_spin\n");
void amx_spin(void);

static void* spin(void* unused) {
  amx_spin();
  return unused;
}

static void* wait_idle(void* unused) {
  while (!amx_stop) sleep_ms(5);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 24)) == 0) target_skip("this CPU has no AMX tiles");
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0)
    target_skip("the kernel grants no AMX tiles: %s", strerror(errno));
  amx_config[0] = 1;
  for (int i = 0; i < 8; ++i) {
    amx_config[16 + 2 * i] = 64;  // bytes a row
    amx_config[48 + i] = 16;      // rows
  }
  fill_words(amx_wanted, sizeof amx_wanted, (uint64_t)getpid());
  pthread_t busy = start_thread(spin, NULL), idle = start_thread(wait_idle, NULL);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  amx_stop = 1;
  CHECK_EQUAL(pthread_join(busy, NULL), 0);
  CHECK_EQUAL(pthread_join(idle, NULL), 0);
  CHECK(memcmp(amx_config_found, amx_config, sizeof amx_config) == 0);
  for (int i = 0; i < 8; ++i)
    if (memcmp(amx_found[i], amx_wanted[i], sizeof amx_wanted[i]) != 0) target_fail("tile %d differs", i);
  uint64_t granted = 0;
  CHECK_EQUAL(syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted), 0);
  CHECK((granted & (1ull << XFEATURE_XTILEDATA)) != 0);
  amx_stop = 0;
  pthread_t again = start_thread(spin, NULL);  // a thread made after the restore may use tiles, too
  sleep_ms(5);
  amx_stop = 1;
  CHECK_EQUAL(pthread_join(again, NULL), 0);
  target_pass();
}
