// Ten children that share most of their memory with the root since they were forked.
#include "target.h"

enum { kChildren = 10, kBytes = 8 << 20 };
static char* g_common;

static int child(void* index) {
  int number = *(int*)index;
  size_t own = (size_t)number * 64 * PAGE_SIZE;
  fill_words(g_common + own, PAGE_SIZE, (uint64_t)(900 + number));
  child_wait(1);
  CHECK_EQUAL(first_wrong(g_common + own, PAGE_SIZE, (uint64_t)(900 + number)), -1);
  for (size_t i = 0; i < kBytes / 8; ++i)
    if ((i < own / 8 || i >= (own + PAGE_SIZE) / 8) && ((uint64_t*)(void*)g_common)[i] != mix(7, i))
      target_fail("word %zu differs", i);
  return 10 + number;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_common = map_pages(kBytes);
  fill_words(g_common, kBytes, 7);
  pid_t children[kChildren];
  for (int i = 0; i < kChildren; ++i) children[i] = start_child(child, &i);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(first_wrong(g_common, kBytes, 7), -1);
  release(1);
  for (int i = 0; i < kChildren; ++i) expect_exit(children[i], 10 + i);
  target_pass();
}
