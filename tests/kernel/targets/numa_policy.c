// NUMA policies of a thread, of another thread, and of mappings, one of them like the thread's own. Every machine has
// node 0.
#include <linux/mempolicy.h>
#include <sys/syscall.h>

#include "target.h"

static volatile int g_ready, g_check, g_right;

static int policy_of(void* address, unsigned flags, unsigned long* nodes) {
  static __thread unsigned long room[16];
  int mode = -1;
  CHECK_EQUAL(syscall(SYS_get_mempolicy, &mode, room, 1025, address, flags), 0);
  *nodes = room[0];
  return mode;
}

static void* run_thread(void* unused) {
  unsigned long nodes = 1;
  CHECK_EQUAL(syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 65), 0);
  g_ready = 1;
  while (g_check == 0) sleep_ms(2);
  nodes = 0;
  g_right = policy_of(NULL, 0, &nodes) == MPOL_BIND && nodes == 1 ? 1 : 2;
  while (getpid() != 0) pause();
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  unsigned long nodes = 1;
  char* bound = map_pages(64 * PAGE_SIZE);
  char* plain = map_pages(64 * PAGE_SIZE);
  char* alike = map_pages(64 * PAGE_SIZE);
  if (syscall(SYS_mbind, bound, 64 * PAGE_SIZE, MPOL_BIND | MPOL_F_STATIC_NODES, &nodes, 65, 0) != 0)
    target_skip("no NUMA policies: %s", strerror(errno));
  CHECK_EQUAL(syscall(SYS_mbind, alike, 64 * PAGE_SIZE, MPOL_INTERLEAVE, &nodes, 65, 0), 0);
  CHECK_EQUAL(syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes, 65), 0);
  start_thread(run_thread, NULL);
  while (g_ready == 0) sleep_ms(1);
  memset(bound, 1, 64 * PAGE_SIZE);
  target_ready();
  target_wait(NULL);
  nodes = 0;
  CHECK_EQUAL(policy_of(NULL, 0, &nodes), MPOL_INTERLEAVE);
  CHECK_EQUAL(nodes, 1);
  nodes = 0;
  CHECK_EQUAL(policy_of(bound, MPOL_F_ADDR, &nodes), MPOL_BIND | MPOL_F_STATIC_NODES);
  CHECK_EQUAL(nodes, 1);
  CHECK_EQUAL(policy_of(alike, MPOL_F_ADDR, &nodes), MPOL_INTERLEAVE);
  CHECK_EQUAL(policy_of(plain, MPOL_F_ADDR, &nodes), MPOL_DEFAULT);
  g_check = 1;
  for (int i = 0; i < 2000 && g_right == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_right, 1);
  target_pass();
}
