// A hundred children, each with memory of its own that changes between the dumps of a chain.
#include "target.h"

enum { kChildren = 100 };
static volatile int* g_steps_shared;  // what the root has been asked for, and how many have done it
static volatile int* g_done;

static int child(void* index) {
  int number = *(int*)index, seen = 0;
  uint64_t* own = map_pages(16 * PAGE_SIZE);
  fill_words(own, 16 * PAGE_SIZE, (uint64_t)number);
  child_ready();
  // One look at the file system for many at the counter: a hundred processes poll here.
  for (int round = 0; *g_steps_shared >= 0; ++round) {
    while (*g_steps_shared > seen) {
      ++seen;
      fill_words((char*)own + (size_t)seen * PAGE_SIZE, PAGE_SIZE, (uint64_t)(1000 * seen + number));
      __atomic_add_fetch(g_done, 1, __ATOMIC_SEQ_CST);
    }
    sleep_ms(10);
  }
  for (int page = 0; page < 16; ++page) {
    bool changed = page > 0 && page <= seen;
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      uint64_t wanted =
          changed ? mix((uint64_t)(1000 * page + number), i) : mix((uint64_t)number, (size_t)page * PAGE_SIZE / 8 + i);
      if (own[(size_t)page * PAGE_SIZE / 8 + i] != wanted) target_fail("child %d: page %d differs", number, page);
    }
  }
  return number;
}

static void step(int number) {
  *g_steps_shared = number;
  while (*g_done < number * kChildren) sleep_ms(1);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_steps_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_steps_shared != MAP_FAILED);
  g_done = g_steps_shared + 1;
  pid_t children[kChildren];
  for (int i = 0; i < kChildren; ++i) children[i] = start_child(child, &i);
  target_ready();
  target_wait(step);
  CHECK_EQUAL(*g_done, target_steps() * kChildren);
  *g_steps_shared = -1;
  for (int i = 0; i < kChildren; ++i) expect_exit(children[i], i);
  expect_childless();
  target_pass();
}
