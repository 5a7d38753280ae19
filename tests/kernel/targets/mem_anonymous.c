// Private anonymous memory: random, compressible, repeated, zero, never touched, touched here and there.
#include "target.h"

enum { kBytes = 8 << 20 };

static char *g_random, *g_repeated, *g_zero, *g_sparse;

static void step(int number) {
  memset(g_repeated + (size_t)number * PAGE_SIZE * 3, number, PAGE_SIZE);
  g_sparse[(size_t)(200 + number) * PAGE_SIZE + 7] = (char)number;
  memset(g_random + (size_t)(number + 40) * PAGE_SIZE, 0, PAGE_SIZE);  // from content to zero
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_random = map_pages(kBytes);
  g_repeated = map_pages(kBytes);
  g_zero = map_pages(kBytes);
  g_sparse = map_pages((size_t)1 << 30);
  char* never = map_pages(kBytes);
  fill_words(g_random, kBytes, 11);
  for (size_t i = 0; i < kBytes; i += PAGE_SIZE) memcpy(g_repeated + i, g_random, PAGE_SIZE);
  memset(g_zero, 0, kBytes);
  for (size_t i = 0; i < 64; ++i) g_sparse[i * (16u << 20) + 5] = (char)(i + 1);
  target_ready();
  target_wait(step);
  for (size_t page = 0; page < kBytes / PAGE_SIZE; ++page) {
    char* random = g_random + page * PAGE_SIZE;
    bool cleared = page > 40 && page <= 40 + (size_t)target_steps();
    uint64_t wanted[PAGE_SIZE / 8];
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) wanted[i] = cleared ? 0 : mix(11, page * PAGE_SIZE / 8 + i);
    if (memcmp(random, wanted, PAGE_SIZE) != 0) target_fail("random page %zu differs", page);
    size_t number = page / 3;
    bool changed = page % 3 == 0 && number >= 1 && number <= (size_t)target_steps();
    if (changed) memset(wanted, (int)number, PAGE_SIZE);
    else for (size_t i = 0; i < PAGE_SIZE / 8; ++i) wanted[i] = mix(11, i);
    if (memcmp(g_repeated + page * PAGE_SIZE, wanted, PAGE_SIZE) != 0) target_fail("repeated page %zu differs", page);
  }
  for (size_t i = 0; i < kBytes; ++i)
    if (g_zero[i] != 0 || never[i] != 0) target_fail("zero byte %zu is not zero", i);
  for (size_t i = 0; i < 64; ++i) CHECK(g_sparse[i * (16u << 20) + 5] == (char)(i + 1));
  for (size_t number = 1; number <= 50; ++number)
    CHECK_EQUAL(g_sparse[(200 + number) * PAGE_SIZE + 7], number <= (size_t)target_steps() ? (int)number : 0);
  target_pass();
}
