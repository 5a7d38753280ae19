// Two thousand mappings side by side.
#include "target.h"

enum { kMaps = 2000 };

int main(int argc, char** argv) {
  target_init(argc, argv);
  char* area = map_pages(kMaps * PAGE_SIZE);
  for (size_t i = 0; i < kMaps; ++i) {
    fill_words(area + i * PAGE_SIZE, PAGE_SIZE, i);
    if (i % 2 == 1) CHECK_EQUAL(mprotect(area + i * PAGE_SIZE, PAGE_SIZE, PROT_READ), 0);
  }
  target_ready();
  target_wait(NULL);
  for (size_t i = 0; i < kMaps; ++i)
    if (first_wrong(area + i * PAGE_SIZE, PAGE_SIZE, i) != -1) target_fail("mapping %zu differs", i);
  char permissions[5], flags[256];
  mapping_flags(area + 1001 * PAGE_SIZE, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "r--p") == 0);
  mapping_flags(area + 1002 * PAGE_SIZE, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "rw-p") == 0);
  target_pass();
}
