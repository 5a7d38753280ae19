// A stack deep in recursion returns through all its frames, the main stack still grows, and so does a MAP_GROWSDOWN
// one.
#include "target.h"

static char* g_grows;

static uint64_t __attribute__((noinline)) descend(int depth) {
  volatile uint64_t frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = mix((uint64_t)depth, (uint64_t)i);
  uint64_t sum = 0;
  if (depth == 0) {
    target_ready();
    target_wait(NULL);
  } else {
    sum = descend(depth - 1);
  }
  for (int i = 0; i < 64; ++i)
    if (frame[i] != mix((uint64_t)depth, (uint64_t)i)) target_fail("frame %d differs", depth);
  return sum + frame[0];
}

static int __attribute__((noinline)) use_stack(int depth) {
  volatile char frame[4000];
  frame[0] = (char)depth;
  return depth == 0 ? frame[0] : use_stack(depth - 1) + (frame[0] != (char)depth);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char* area = map_pages(64 * PAGE_SIZE);
  CHECK_EQUAL(munmap(area, 64 * PAGE_SIZE), 0);
  g_grows = mmap(area + 60 * PAGE_SIZE, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
  CHECK(g_grows != MAP_FAILED);
  for (int page = 1; page >= -8; --page)
    fill_words(g_grows + page * (long)PAGE_SIZE, PAGE_SIZE, (uint64_t)(100 + page));
  uint64_t sum = descend(2000), wanted = 0;
  for (int depth = 0; depth <= 2000; ++depth) wanted += mix((uint64_t)depth, 0);
  CHECK(sum == wanted);
  for (int page = 1; page >= -8; --page)
    if (first_wrong(g_grows + page * (long)PAGE_SIZE, PAGE_SIZE, (uint64_t)(100 + page)) != -1)
      target_fail("page %d of the growing mapping differs", page);
  char permissions[5], flags[256];
  mapping_flags(g_grows, permissions, flags, sizeof flags);
  CHECK(strstr(flags, " gd ") != NULL);
  g_grows[-12 * (long)PAGE_SIZE] = 1;
  CHECK_EQUAL(use_stack(1000), 0);
  target_pass();
}
