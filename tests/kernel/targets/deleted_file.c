// Files that were deleted while open: content with a hole, size, offset, two open files of one, another file that has
// the old name now. What is written between the dumps of a chain belongs to each of them.
#include <sys/stat.h>
#include <sys/xattr.h>

#include "target.h"

enum { kContent = 100 * 1024, kHole = 1 << 20, kSize = kHole + 4096, kLasting = 4 };  // RWH_WRITE_LIFE_LONG
static int g_main;

static void step(int number) {
  uint64_t page[PAGE_SIZE / 8];
  fill_words(page, sizeof page, (uint64_t)(60 + number));
  CHECK_EQUAL(pwrite(g_main, page, sizeof page, kHole + 4096 * number), sizeof page);
}

static void expect_deleted(int fd, const char* name, off_t size) {
  struct stat about;
  CHECK_EQUAL(fstat(fd, &about), 0);
  CHECK_EQUAL(about.st_nlink, 0);
  CHECK_EQUAL(about.st_size, size);
  CHECK_EQUAL(about.st_mode, S_IFREG | 0640);
  char path[64], link[4096] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  CHECK(readlink(path, link, sizeof link - 1) > 0);
  // Where another file has the name now, /proc may say a longer one.
  const char *last = strrchr(link, '/'), *end = strrchr(link, ' ');
  if (last == NULL || strncmp(last + 1, name, strlen(name)) != 0 || strcmp(end, " (deleted)") != 0)
    target_fail("the deleted file is '%s'", link);
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK_EQUAL(lseek(g_main, 0, SEEK_CUR), 1234);
  CHECK_EQUAL(pwrite(g_main, "by the child", 12, 0), 12);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  umask(0);
  static char content[kContent], found[kContent];
  fill_words(content, sizeof content, 60);
  g_main = open("gone", O_CREAT | O_RDWR, 0640);
  int reader = open("gone", O_RDONLY), empty = open("empty", O_CREAT | O_RDWR | O_APPEND, 0640);
  CHECK(g_main >= 0 && reader >= 0 && empty >= 0);
  CHECK_EQUAL(write(g_main, content, kContent), kContent);
  CHECK_EQUAL(ftruncate(g_main, kSize), 0);
  const uint64_t lasting = kLasting;
  CHECK_EQUAL(fcntl(g_main, F_SET_RW_HINT, &lasting), 0);
  const bool has_attributes = fsetxattr(g_main, "user.made-by", "the root", 8, 0) == 0;
  CHECK_EQUAL(lseek(g_main, 1234, SEEK_SET), 1234);
  CHECK_EQUAL(lseek(reader, kContent - 8, SEEK_SET), kContent - 8);
  CHECK(unlink("gone") == 0 && unlink("empty") == 0);
  int again = open("gone", O_CREAT | O_RDWR, 0600);
  CHECK_EQUAL(write(again, "another", 7), 7);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(step);

  expect_deleted(g_main, "gone", kSize + 4096 * target_steps());
  expect_deleted(reader, "gone", kSize + 4096 * target_steps());
  expect_deleted(empty, "empty", 0);
  uint64_t hint = 0;
  CHECK_EQUAL(fcntl(g_main, F_GET_RW_HINT, &hint), 0);
  CHECK_EQUAL(hint, kLasting);
  if (has_attributes) CHECK_EQUAL(fgetxattr(g_main, "user.made-by", found, sizeof found), 8);
  if (has_attributes) CHECK(memcmp(found, "the root", 8) == 0);
  expect_same_file(g_main, below, g_main, true);
  expect_same_file(g_main, getpid(), reader, false);
  CHECK_EQUAL(lseek(g_main, 0, SEEK_CUR), 1234);
  CHECK_EQUAL(lseek(reader, 0, SEEK_CUR), kContent - 8);
  CHECK_EQUAL(pread(g_main, found, kContent, 0), kContent);
  CHECK(memcmp(found, content, kContent) == 0);
  CHECK_EQUAL(pread(g_main, found, 4096, kContent + 8192), 4096);
  for (int i = 0; i < 4096; ++i) CHECK_EQUAL(found[i], 0);
  for (int number = 1; number <= target_steps(); ++number) {
    CHECK_EQUAL(pread(g_main, found, 4096, kHole + 4096 * number), 4096);
    CHECK_EQUAL(first_wrong(found, 4096, (uint64_t)(60 + number)), -1);
  }
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(pread(reader, found, 12, 0), 12);
  CHECK(memcmp(found, "by the child", 12) == 0);
  CHECK_EQUAL(write(empty, "12", 2), 2);
  CHECK_EQUAL(lseek(empty, 0, SEEK_CUR), 2);
  CHECK_EQUAL(pread(again, found, sizeof found, 0), 7);
  CHECK(memcmp(found, "another", 7) == 0);
  CHECK_EQUAL(access("empty", F_OK), -1);
  target_pass();
}
