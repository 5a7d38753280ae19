// Address space that is reserved and hardly touched, as language runtimes, sanitizers and databases have it: its size
// must not be felt. Some pages of it, far apart, change with every step.
#include "target.h"

#define REACH ((size_t)64 << 40)
#define PLACES 64

static char* sparse;
static char* none;
static size_t size;

static uint64_t* place(int i) { return (uint64_t*)(sparse + size / PLACES * (size_t)i + PAGE_SIZE * (size_t)i); }

static void change(int step) {
  for (int i = step % 3; i < PLACES; i += 3) *place(i) = mix((uint64_t)i, (uint64_t)step);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (size = REACH; (none = mmap(NULL, size, PROT_NONE, flags, -1, 0)) == MAP_FAILED; size /= 2) {
    if (size < ((size_t)1 << 40)) target_skip("no terabyte of address space");
  }
  size /= 4;
  sparse = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (sparse == MAP_FAILED) target_skip("no address space for a second mapping");
  CHECK_EQUAL(madvise(sparse, size, MADV_NOHUGEPAGE), 0);
  for (int i = 0; i < PLACES; ++i) *place(i) = mix((uint64_t)i, 0);
  target_ready();
  target_wait(change);
  for (int i = 0; i < PLACES; ++i) {
    int step = 0;
    for (int s = 1; s <= target_steps(); ++s) {
      if (i >= s % 3 && (i - s % 3) % 3 == 0) step = s;
    }
    CHECK(*place(i) == mix((uint64_t)i, (uint64_t)step));
    CHECK(*(volatile char*)(place(i) + PAGE_SIZE / 8) == 0);  // the page after it: nothing was there
  }
  char permissions[5], vm_flags[256];
  mapping_flags(none + size, permissions, vm_flags, sizeof vm_flags);
  CHECK(strcmp(permissions, "---p") == 0);
  target_pass();
}
