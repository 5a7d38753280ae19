// Content behind read-only, executable and inaccessible pages, the permissions themselves, and code made at run time.
#include <setjmp.h>

#include "target.h"

static sigjmp_buf g_back;
static void caught(int number) {
  (void)number;
  siglongjmp(g_back, 1);
}

static void expect_permissions(const void* address, const char* wanted) {
  char permissions[5], flags[256];
  mapping_flags(address, permissions, flags, sizeof flags);
  if (strcmp(permissions, wanted) != 0) target_fail("mapping at %p is %s, not %s", address, permissions, wanted);
}

static bool faults(volatile char* address, bool write) {
  if (sigsetjmp(g_back, 1) != 0) return true;
  if (write) *address = 1;
  else (void)*address;
  return false;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(signal(SIGSEGV, caught) != SIG_ERR);
  char* read_only = map_pages(4 * PAGE_SIZE);
  char* hidden = map_pages(4 * PAGE_SIZE);
  char* write_only = map_pages(PAGE_SIZE);
  char* code = map_pages(PAGE_SIZE);
  char* reserved = mmap(NULL, (size_t)1 << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(reserved != MAP_FAILED);
  fill_words(read_only, 4 * PAGE_SIZE, 51);
  fill_words(hidden, 4 * PAGE_SIZE, 52);
  fill_words(write_only, PAGE_SIZE, 53);
  const unsigned char return_4711[] = {0xb8, 0x67, 0x12, 0x00, 0x00, 0xc3};
  memcpy(code, return_4711, sizeof return_4711);
  CHECK_EQUAL(mprotect(read_only, 4 * PAGE_SIZE, PROT_READ), 0);
  CHECK_EQUAL(mprotect(hidden, 4 * PAGE_SIZE, PROT_NONE), 0);
  CHECK_EQUAL(mprotect(write_only, PAGE_SIZE, PROT_WRITE), 0);
  CHECK_EQUAL(mprotect(code, PAGE_SIZE, PROT_READ | PROT_EXEC), 0);
  target_ready();
  target_wait(NULL);
  expect_permissions(read_only, "r--p");
  expect_permissions(hidden, "---p");
  expect_permissions(write_only, "-w-p");
  expect_permissions(code, "r-xp");
  expect_permissions(reserved + ((size_t)1 << 39), "---p");
  CHECK(faults(read_only, true) && !faults(read_only, false) && faults(hidden, false) && faults(reserved, false));
  CHECK_EQUAL(first_wrong(read_only, 4 * PAGE_SIZE, 51), -1);
  CHECK_EQUAL(mprotect(hidden, 4 * PAGE_SIZE, PROT_READ), 0);
  CHECK_EQUAL(first_wrong(hidden, 4 * PAGE_SIZE, 52), -1);
  CHECK_EQUAL(mprotect(write_only, PAGE_SIZE, PROT_READ), 0);
  CHECK_EQUAL(first_wrong(write_only, PAGE_SIZE, 53), -1);
  int (*run)(void);
  memcpy(&run, &code, sizeof run);
  CHECK_EQUAL(run(), 4711);
  target_pass();
}
