// A file that never had a name: its content, and that it can be given one.
#include <sys/stat.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = open(".", O_TMPFILE | O_RDWR, 0610);
  if (fd < 0) target_skip("O_TMPFILE: %s", strerror(errno));
  static char content[300000], found[300000];
  fill_words(content, sizeof content, 33);
  CHECK_EQUAL(write(fd, content, sizeof content), sizeof content);
  CHECK_EQUAL(lseek(fd, 77, SEEK_SET), 77);
  target_ready();
  target_wait(NULL);
  struct stat about;
  CHECK_EQUAL(fstat(fd, &about), 0);
  CHECK_EQUAL(about.st_nlink, 0);
  CHECK_EQUAL(about.st_mode & 07777, 0610);
  CHECK_EQUAL(lseek(fd, 0, SEEK_CUR), 77);
  CHECK_EQUAL(pread(fd, found, sizeof found, 0), sizeof found);
  CHECK(memcmp(found, content, sizeof found) == 0);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  unlink("named");  // by an earlier restore
  CHECK_EQUAL(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW), 0);
  CHECK_EQUAL(stat("named", &about), 0);
  CHECK_EQUAL(about.st_size, sizeof found);
  target_pass();
}
