// Memory for code that a program makes as it runs, as just-in-time compilers have it: writable and executable, reserved
// without a promise, of the sizes that ckpt's own parasite areas have and of others, mostly not touched yet.
#include "target.h"

#define AREAS 12

static unsigned char* areas[AREAS];
static const size_t sizes[] = {PAGE_SIZE, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20};
static size_t size_of(int i) { return sizes[i % (int)(sizeof sizes / sizeof *sizes)]; }

/// A function that returns the step, at the area's middle.
static void change(int step) {
  unsigned char* at = areas[step % AREAS] + size_of(step % AREAS) / 2;
  at[0] = 0xb8, memcpy(at + 1, &step, 4), at[5] = 0xc3;  // mov eax, step; ret
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < AREAS; ++i) {
    const int reserve = i < AREAS / 2 ? MAP_NORESERVE : 0;
    areas[i] = mmap(NULL, size_of(i), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | reserve, -1, 0);
    if (areas[i] == MAP_FAILED) target_skip("no memory that is writable and executable");
    CHECK(mmap(NULL, PAGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);  // no two become one
  }
  target_ready();
  target_wait(change);
  for (int step = target_steps() > AREAS ? target_steps() - AREAS + 1 : 1; step <= target_steps(); ++step) {
    int (*code)(void);
    void* at = areas[step % AREAS] + size_of(step % AREAS) / 2;
    memcpy(&code, &at, sizeof code);
    CHECK_EQUAL(code(), step);
  }
  for (int i = 0; i < AREAS; ++i) {
    for (size_t at = 0; at < size_of(i); at += PAGE_SIZE) {
      CHECK_EQUAL(areas[i][at + 64], 0);
      areas[i][at + 64] = 1;
    }
  }
  target_pass();
}
