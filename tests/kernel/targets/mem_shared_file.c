// A shared mapping of a file stays connected with the file.
#include "target.h"

enum { kBytes = 1 << 20 };

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = open("shared", O_CREAT | O_RDWR, 0600);
  CHECK_EQUAL(ftruncate(fd, kBytes), 0);
  char* whole = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char* part = mmap(NULL, 4 * PAGE_SIZE, PROT_READ, MAP_SHARED, fd, 8 * PAGE_SIZE);
  CHECK(whole != MAP_FAILED && part != MAP_FAILED);
  fill_words(whole, kBytes, 31);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(first_wrong(whole, kBytes, 31), -1);
  whole[8 * PAGE_SIZE + 5] ^= 3;
  CHECK_EQUAL(part[5], whole[8 * PAGE_SIZE + 5]);
  char byte;
  CHECK_EQUAL(pread(fd, &byte, 1, 8 * PAGE_SIZE + 5), 1);
  CHECK_EQUAL(byte, part[5]);
  whole[8 * PAGE_SIZE + 5] ^= 3;
  char permissions[5], flags[256];
  mapping_flags(whole, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "rw-s") == 0);
  mapping_flags(part, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "r--s") == 0);
  target_pass();
}
