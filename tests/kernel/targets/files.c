// Regular files: offsets, access modes, O_APPEND, descriptors that share an offset, close-on-exec, high numbers, a
// folder.
#include <dirent.h>
#include <sys/stat.h>

#include "target.h"

static int open_at(int number, const char* path, int flags) {
  int fd = open(path, flags, 0640);
  if (fd < 0) target_fail("%s: %s", path, strerror(errno));
  if (dup3(fd, number, flags & O_CLOEXEC) != number) target_fail("dup3 to %d: %s", number, strerror(errno));
  close(fd);
  return number;
}

static void expect(int fd, off_t offset, int flags, bool cloexec) {
  const int kept = O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_NOATIME | O_DIRECTORY | O_PATH;
  int now = fcntl(fd, F_GETFL);
  if (now < 0) target_fail("descriptor %d: %s", fd, strerror(errno));
  if ((now & kept) != (flags & kept)) target_fail("descriptor %d has flags %#x, not %#x", fd, now, flags);
  if ((fcntl(fd, F_GETFD) == FD_CLOEXEC) != cloexec) target_fail("descriptor %d: close-on-exec differs", fd);
  if ((flags & O_PATH) == 0 && lseek(fd, 0, SEEK_CUR) != offset)
    target_fail("descriptor %d is at %ld, not %ld", fd, (long)lseek(fd, 0, SEEK_CUR), (long)offset);
}

static int count_open(void) {
  DIR* folder = opendir("/proc/self/fd");
  int count = -3;  // "." and "..", and the folder itself
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char text[32768];
  fill_words(text, sizeof text, 3);
  int plain = open_at(10, "plain", O_CREAT | O_RDWR | O_CLOEXEC);
  CHECK_EQUAL(write(plain, text, sizeof text), sizeof text);
  CHECK_EQUAL(lseek(plain, 1234, SEEK_SET), 1234);
  int append = open_at(11, "append", O_CREAT | O_WRONLY | O_APPEND);
  CHECK_EQUAL(write(append, "one ", 4), 4);
  int reader = open_at(12, "plain", O_RDONLY | O_NONBLOCK);
  CHECK_EQUAL(lseek(reader, 99, SEEK_SET), 99);
  CHECK_EQUAL(dup2(reader, 500), 500);
  CHECK_EQUAL(dup3(reader, 501, O_CLOEXEC), 501);
  int past_end = open_at(20, "short", O_CREAT | O_RDWR | O_SYNC);
  CHECK_EQUAL(lseek(past_end, 100000, SEEK_SET), 100000);
  int folder = open_at(21, ".", O_RDONLY | O_DIRECTORY);
  int path = open_at(22, "plain", O_PATH);
  CHECK_EQUAL(mkdir("folder with space\nand line", 0700), 0);
  int odd = open_at(23, "folder with space\nand line/(deleted)", O_CREAT | O_RDWR);
  int high = open_at(1000, "high", O_CREAT | O_RDWR);
  int count = count_open();
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(count_open(), count);
  expect(plain, 1234, O_RDWR, true);
  expect(append, 4, O_WRONLY | O_APPEND, false);
  expect(reader, 99, O_RDONLY | O_NONBLOCK, false);
  expect(500, 99, O_RDONLY | O_NONBLOCK, false);
  expect(501, 99, O_RDONLY | O_NONBLOCK, true);
  expect(past_end, 100000, O_RDWR | O_SYNC, false);
  expect(folder, 0, O_RDONLY | O_DIRECTORY, false);
  expect(path, 0, O_PATH, false);
  expect(odd, 0, O_RDWR, false);
  expect(high, 0, O_RDWR, false);
  char found[8];
  CHECK_EQUAL(read(500, found, 8), 8);
  CHECK(memcmp(found, text + 99, 8) == 0);
  CHECK_EQUAL(lseek(reader, 0, SEEK_CUR), 107);  // one open file, three descriptors
  CHECK_EQUAL(lseek(501, 0, SEEK_CUR), 107);
  CHECK_EQUAL(read(plain, found, 8), 8);
  CHECK(memcmp(found, text + 1234, 8) == 0);
  CHECK_EQUAL(lseek(12, 0, SEEK_CUR), 107);
  CHECK_EQUAL(pwrite(high, "h", 1, 0), 1);
  CHECK_EQUAL(write(append, "two ", 4), 4);
  struct stat about;
  CHECK_EQUAL(fstat(append, &about), 0);
  CHECK(about.st_size >= 8);
  CHECK_EQUAL(fstat(path, &about), 0);
  CHECK_EQUAL(about.st_size, sizeof text);
  CHECK_EQUAL(openat(folder, "no such file", O_RDONLY), -1);
  CHECK_EQUAL(errno, ENOENT);
  CHECK(fcntl(0, F_GETFL) >= 0 && fcntl(1, F_GETFL) >= 0);
  target_pass();
}
