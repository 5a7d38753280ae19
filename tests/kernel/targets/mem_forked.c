// Memory that a root shares with its children since they were forked, with one that has a child of its own, and with
// two whose parent has ended: every page has what its process last wrote there, be it the root, a child, or both.
// Arguments: how many children.
#include <sys/prctl.h>
#include <sys/wait.h>

#include "target.h"

enum { kPages = 4096, kLarge = 300 };  // 16 MiB, and as much again in a heap that grew after the forks
static uint64_t* g_memory;
static char* g_heap;

static uint64_t* page(int i) { return g_memory + (size_t)i * (PAGE_SIZE / 8); }

/// What process `who` (0: the root) has in its page i, `steps` steps later.
static uint64_t seed_of(int i, int who, int steps) {
  if (who == 0 && i < 1024 && i % 16 == 1) return (uint64_t)(1000000 + i);  // the root since it forked, here and there
  if (who == 90 && i / 8 == 201) return seed_of(i, 1, steps);  // a child of the first
  if (who != 0 && i / 8 == 200 + who) return (uint64_t)(2000000 + who * kPages + i);
  if (who >= 100 && i < 16) return (uint64_t)(3000000 + i);  // of the parent that has ended
  if (who == 0 && i % 64 == 5 && i / 64 < steps) return (uint64_t)(4000000 + i);
  return (uint64_t)i;
}

static void change(int who, int steps) {
  for (int i = 0; i < kPages; ++i) {
    if (seed_of(i, who, steps) != (uint64_t)i) fill_words(page(i), PAGE_SIZE, seed_of(i, who, steps));
  }
}

static void expect_content(int who, int steps) {
  for (int i = 0; i < kPages; ++i) {
    if (who != 0 && i % 512 == 300) {
      CHECK(*page(i) == 0);  // emptied
    } else if (first_wrong(page(i), PAGE_SIZE, seed_of(i, who, steps)) != -1) {
      target_fail("page %d of process %d differs", i, who);
    }
  }
  for (int i = 0; i < kLarge; ++i) CHECK_EQUAL(g_heap[(size_t)i * PAGE_SIZE], 'h');
}

static int live(void* argument) {
  const int who = (int)(intptr_t)argument;
  change(who, 0);
  for (int i = 300; i < kPages; i += 512) CHECK_EQUAL(madvise(page(i), PAGE_SIZE, MADV_DONTNEED), 0);
  if (who == 1) start_child(live, (void*)(intptr_t)90);
  child_wait(1);
  expect_content(who, 0);
  if (who == 1) {
    int status;
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 3);
  }
  return 3;
}

static int end_as_a_parent(void* unused) {
  (void)unused;
  for (int i = 0; i < 16; ++i) fill_words(page(i), PAGE_SIZE, (uint64_t)(3000000 + i));
  start_child(live, (void*)(intptr_t)100);
  start_child(live, (void*)(intptr_t)101);
  return 4;
}

static void step(int number) { change(0, number); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  const int children = argc > 2 ? atoi(argv[2]) : 3;
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_memory = map_pages(kPages * PAGE_SIZE);
  for (int i = 0; i < kPages; ++i) fill_words(page(i), PAGE_SIZE, (uint64_t)i);
  g_heap = sbrk(kLarge * PAGE_SIZE);
  for (int i = 0; i < kLarge; ++i) g_heap[(size_t)i * PAGE_SIZE] = 'h';
  pid_t other = start_child(end_as_a_parent, NULL);
  expect_exit(other, 4);
  for (int i = 1; i <= children; ++i) start_child(live, (void*)(intptr_t)i);
  CHECK(sbrk(kLarge * PAGE_SIZE) != (void*)-1);
  change(0, 0);
  target_ready();
  target_wait(step);
  expect_content(0, target_steps());
  release(1);
  for (int i = 0; i < children + 2; ++i) {
    int status;
    CHECK(wait(&status) > 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
  }
  expect_childless();
  target_pass();
}
