// A deleted file that was open under several names is still one file, mapped too; and a deleted folder below a deleted
// one.
#include <sys/stat.h>

#include "target.h"

static void expect_name(int fd, const char* name) {
  char path[64], link[4096] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  CHECK(readlink(path, link, sizeof link - 1) > 0);
  const char* last = strrchr(link, '/');
  if (last == NULL || strncmp(last + 1, name, strlen(name)) != 0) target_fail("%s is '%s'", name, link);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int a = open("a", O_CREAT | O_RDWR, 0600);
  CHECK(a >= 0 && ftruncate(a, 2 * (off_t)PAGE_SIZE) == 0 && mkdir("sub", 0700) == 0);
  CHECK(link("a", "b") == 0 && link("a", "sub/c") == 0);
  int b = open("b", O_RDWR | O_NOFOLLOW), c = open("sub/c", O_RDONLY);
  char* mapped = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
  CHECK(b >= 0 && c >= 0 && mapped != MAP_FAILED && pwrite(a, "one", 3, 0) == 3);
  CHECK(unlink("b") == 0 && unlink("sub/c") == 0 && unlink("a") == 0);
  CHECK(mkdir("sub/below", 0711) == 0);
  int folder = open("sub/below", O_RDONLY | O_DIRECTORY);
  CHECK(folder >= 0 && rmdir("sub/below") == 0 && rmdir("sub") == 0);
  target_ready();
  target_wait(NULL);
  struct stat first, other;
  CHECK(fstat(a, &first) == 0 && fstat(b, &other) == 0);
  CHECK_EQUAL(first.st_ino, other.st_ino);
  CHECK(fstat(c, &other) == 0);
  CHECK_EQUAL(first.st_ino, other.st_ino);
  CHECK_EQUAL(first.st_nlink, 0);
  char text[4] = "";
  CHECK(pread(c, text, 3, 0) == 3 && strcmp(text, "one") == 0);
  mapped[PAGE_SIZE] = 'x';
  CHECK(pread(a, text, 1, PAGE_SIZE) == 1 && text[0] == 'x');
  expect_name(a, "a");
  expect_name(b, "b");
  expect_name(c, "c");
  CHECK(fstat(folder, &other) == 0 && S_ISDIR(other.st_mode) && (other.st_mode & 07777) == 0711 && other.st_nlink == 0);
  CHECK(access("sub", F_OK) != 0 && access("a", F_OK) != 0);
  target_pass();
}
