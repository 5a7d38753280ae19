// Private pages that fork shares: unchanged, changed by the child, by the root, by both, unmapped in one, changed
// between the dumps of a chain.
#include "target.h"

enum { kPages = 512 };
static char* g_memory;
static volatile int* g_step;

static uint64_t seed_of(int page, int who, int steps) {  // who: 0 root, 1 child
  if (page % 8 == 2 && who == 1) return (uint64_t)(10000 + page);
  if (page % 8 == 3 && who == 0) return (uint64_t)(20000 + page);
  if (page % 8 == 4) return (uint64_t)((who + 3) * 10000 + page);
  if (page % 64 == 5 && page / 64 < steps) return (uint64_t)((who + 5) * 10000 + page);
  return (uint64_t)page;
}

static void change(int who, int steps) {
  for (int page = 0; page < kPages; ++page)
    if (seed_of(page, who, steps) != (uint64_t)page)
      fill_words(g_memory + (size_t)page * PAGE_SIZE, PAGE_SIZE, seed_of(page, who, steps));
}

static void expect_content(int who, int steps) {
  for (int page = 0; page < kPages; ++page) {
    if (page % 8 == 6 && who == 1) continue;  // unmapped there
    if (first_wrong(g_memory + (size_t)page * PAGE_SIZE, PAGE_SIZE, seed_of(page, who, steps)) != -1)
      target_fail("page %d differs", page);
  }
}

static int child(void* unused) {
  (void)unused;
  change(1, 0);
  for (int page = 6; page < kPages; page += 8) CHECK_EQUAL(munmap(g_memory + (size_t)page * PAGE_SIZE, PAGE_SIZE), 0);
  child_ready();
  for (int done = 0; g_step[0] >= 0; sleep_ms(1))
    if (g_step[0] > done) {
      change(1, ++done);
      g_step[1] = done;
    }
  expect_content(1, g_step[1]);
  return 1;
}

static void step(int number) {
  change(0, number);
  g_step[0] = number;
  while (g_step[1] < number) sleep_ms(1);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_step = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_step != MAP_FAILED);
  g_memory = map_pages(kPages * PAGE_SIZE);
  for (int page = 0; page < kPages; ++page) fill_words(g_memory + (size_t)page * PAGE_SIZE, PAGE_SIZE, (uint64_t)page);
  pid_t below = start_child(child, NULL);
  change(0, 0);
  target_ready();
  target_wait(step);
  expect_content(0, target_steps());
  g_step[0] = -1;
  expect_exit(below, 1);
  target_pass();
}
