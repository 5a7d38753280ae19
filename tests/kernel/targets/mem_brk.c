// The heap: its bounds, its content, and that it grows and shrinks after the restore from where it was.
#include "target.h"

static char* g_start;
static void step(int number) {
  if (number == 1) {
    CHECK(sbrk(-256 * 1024) != (void*)-1);  // shrink and grow again: what comes back is zero
    CHECK(sbrk(256 * 1024) != (void*)-1);
  } else {
    CHECK(sbrk(64 * 1024) != (void*)-1);
  }
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char* allocated = malloc(100000);  // the last of malloc in the heap: from here on it is ours
  fill_words(allocated, 100000, 63);
  g_start = sbrk(0);
  g_start = (char*)(((uintptr_t)g_start + 15) & ~(uintptr_t)15);
  CHECK(sbrk(1 << 20) != (void*)-1);
  fill_words(g_start, 512 * 1024, 61);
  fill_words(g_start + 768 * 1024, 200 * 1024, 62);
  char* end = sbrk(0);
  target_ready();
  target_wait(step);
  CHECK((char*)sbrk(0) == end + (target_steps() > 1 ? (target_steps() - 1) * 64 * 1024 : 0));
  CHECK_EQUAL(first_wrong(g_start, 512 * 1024, 61), -1);
  long wrong = first_wrong(g_start + 768 * 1024, 200 * 1024, 62);
  CHECK(target_steps() == 0 ? wrong == -1 : wrong >= 0);
  CHECK_EQUAL(first_wrong(allocated, 100000, 63), -1);
  char* before = sbrk(1 << 20);
  CHECK(before != (void*)-1);
  memset(before, 1, 1 << 20);
  CHECK(sbrk(-(1 << 20)) != (void*)-1 && sbrk(0) == before);
  target_pass();
}
