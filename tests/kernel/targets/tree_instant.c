// Three processes that hand a number round through pipes and shared memory without pause: an image must be of one
// instant of all three, or a number is lost, doubled, or ahead of the memory.
#include "target.h"

enum { kMembers = 3, kEnd = -1 };
static int g_pipes[kMembers][2];
static volatile int64_t* g_shared;  // the last number of each member, and whether to end

static int member(void* index) {
  int own = *(int*)index, before = (own + kMembers - 1) % kMembers;
  for (int i = 0; i < kMembers; ++i) {
    if (i != before) CHECK_EQUAL(close(g_pipes[i][0]), 0);
    if (i != own) CHECK_EQUAL(close(g_pipes[i][1]), 0);
  }
  child_ready();
  int64_t expected = own == 0 ? kMembers : own, number = 0;
  for (;; expected += kMembers) {
    CHECK_EQUAL(read(g_pipes[before][0], &number, sizeof number), sizeof number);
    if (number == kEnd) break;
    CHECK_EQUAL(number, expected);
    CHECK_EQUAL(g_shared[before], number);
    CHECK_EQUAL(g_shared[own], number < kMembers ? 0 : number - kMembers + 1);
    g_shared[own] = ++number;
    if (own == 0 && g_shared[kMembers] != 0) break;
    CHECK_EQUAL(write(g_pipes[own][1], &number, sizeof number), sizeof number);
  }
  number = kEnd;
  if (own != kMembers - 1) CHECK_EQUAL(write(g_pipes[own][1], &number, sizeof number), sizeof number);
  return 70 + own;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  for (int i = 0; i < kMembers; ++i) CHECK_EQUAL(pipe(g_pipes[i]), 0);
  pid_t members[kMembers];
  for (int i = 0; i < kMembers; ++i) members[i] = start_child(member, &i);
  int64_t first = 1;
  g_shared[0] = first;
  CHECK_EQUAL(write(g_pipes[0][1], &first, sizeof first), sizeof first);
  for (int i = 0; i < kMembers; ++i) CHECK(close(g_pipes[i][0]) == 0 && close(g_pipes[i][1]) == 0);
  while (g_shared[0] < 1000) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  int64_t reached = g_shared[0];
  for (int i = 0; i < 5000 && g_shared[0] < reached + 100; ++i) sleep_ms(1);
  CHECK(g_shared[0] >= reached + 100);  // they go on
  g_shared[kMembers] = 1;
  for (int i = 0; i < kMembers; ++i) expect_exit(members[i], 70 + i);
  target_pass();
}
