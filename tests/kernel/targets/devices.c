// /dev/null and its kin.
#include <sys/stat.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  const char* path[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
  struct stat before[5], after;
  for (int i = 0; i < 5; ++i) {
    CHECK_EQUAL(open(path[i], i % 2 ? O_RDWR | O_CLOEXEC : O_RDWR), i + 3);
    CHECK_EQUAL(fstat(i + 3, &before[i]), 0);
  }
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < 5; ++i) {
    CHECK_EQUAL(fstat(i + 3, &after), 0);
    CHECK(after.st_rdev == before[i].st_rdev && S_ISCHR(after.st_mode));
    CHECK_EQUAL(fcntl(i + 3, F_GETFL) & O_ACCMODE, O_RDWR);
    CHECK_EQUAL(fcntl(i + 3, F_GETFD), i % 2 ? FD_CLOEXEC : 0);
  }
  char byte = 1;
  CHECK_EQUAL(read(3, &byte, 1), 0);
  CHECK_EQUAL(read(4, &byte, 1), 1);
  CHECK_EQUAL(byte, 0);
  CHECK(write(5, &byte, 1) == -1 && errno == ENOSPC);
  CHECK_EQUAL(read(7, &byte, 1), 1);
  target_pass();
}
