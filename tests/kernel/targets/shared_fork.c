// Shared anonymous memory of several processes, in parts, at other addresses, and changed between the dumps of a chain:
// what one writes after the restore the others see.
#include "target.h"

enum { kBytes = 1 << 20, kHalf = kBytes / 2 };
static char* g_whole;

static void step(int number) {
  fill_words(g_whole + (size_t)number * 16 * PAGE_SIZE, PAGE_SIZE, (uint64_t)(1000 + number));
}

// The caller knows how many steps there were; a child reads that number from the last page.
static void expect_content(const char* memory, size_t from, size_t to, int steps) {
  for (size_t page = from / PAGE_SIZE; page < to / PAGE_SIZE; ++page) {
    if (page == kBytes / PAGE_SIZE - 1) continue;
    bool changed = page % 16 == 0 && page > 0 && page / 16 <= (size_t)steps;
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      uint64_t wanted = changed ? mix(1000 + page / 16, i) : mix(41, page * PAGE_SIZE / 8 + i);
      if (((const uint64_t*)(const void*)memory)[page * PAGE_SIZE / 8 - from / 8 + i] != wanted)
        target_fail("page %zu differs", page);
    }
  }
}

static volatile int* board(char* end) { return (volatile int*)(void*)(end - PAGE_SIZE); }

static int sees_all(void* unused) {
  (void)unused;
  child_wait(1);
  expect_content(g_whole, 0, kBytes, board(g_whole + kBytes)[0]);
  board(g_whole + kBytes)[1] = 1111;
  return 1;
}

static int sees_second_half(void* unused) {
  (void)unused;
  CHECK_EQUAL(munmap(g_whole, kHalf), 0);
  char* moved = mremap(g_whole + kHalf, kHalf, kHalf, MREMAP_MAYMOVE | MREMAP_FIXED, map_pages(kHalf));
  CHECK(moved != MAP_FAILED && moved != g_whole + kHalf);
  child_wait(1);
  expect_content(moved, kHalf, kBytes, board(moved + kHalf)[0]);
  board(moved + kHalf)[2] = 2222;
  return 2;
}

static int reads_only(void* unused) {
  (void)unused;
  CHECK_EQUAL(mprotect(g_whole, kBytes, PROT_READ), 0);
  child_wait(1);
  expect_content(g_whole, 0, kBytes, board(g_whole + kBytes)[0]);
  char permissions[5], flags[256];
  mapping_flags(g_whole, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "r--s") == 0);
  return 3;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_whole = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_whole != MAP_FAILED);
  fill_words(g_whole, kBytes - PAGE_SIZE, 41);
  pid_t all = start_child(sees_all, NULL), half = start_child(sees_second_half, NULL),
        reader = start_child(reads_only, NULL);
  target_ready();
  target_wait(step);
  board(g_whole + kBytes)[0] = target_steps();
  release(1);
  expect_exit(all, 1);
  expect_exit(half, 2);
  expect_exit(reader, 3);
  CHECK_EQUAL(board(g_whole + kBytes)[1], 1111);
  CHECK_EQUAL(board(g_whole + kBytes)[2], 2222);
  expect_content(g_whole, 0, kBytes, target_steps());
  target_pass();
}
