// Folders: one read half-way through, one used for relative names by a child; O_PATH of a file, of a symbolic link.
#include <dirent.h>
#include <sys/stat.h>

#include "target.h"

enum { kFiles = 200 };
static int g_inside;

struct Entry {
  uint64_t inode;
  int64_t offset;
  uint16_t size;
  uint8_t type;
  char name[];
};

static int read_names(int fd, size_t room, bool* seen) {
  char buffer[4096];
  long got = syscall(SYS_getdents64, fd, buffer, room);
  CHECK(got >= 0);
  int count = 0;
  for (long at = 0; at < got;) {
    struct Entry* entry = (struct Entry*)(void*)(buffer + at);
    int number;
    if (sscanf(entry->name, "file%d", &number) == 1) {
      if (seen[number]) target_fail("%s is listed twice", entry->name);
      seen[number] = true;
    }
    ++count;
    at += entry->size;
  }
  return count;
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  int fd = openat(g_inside, "file7", O_RDONLY);
  char text[8] = "";
  CHECK(fd >= 0 && read(fd, text, sizeof text) == 1 && text[0] == 'x');
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  static bool seen[kFiles];
  CHECK_EQUAL(mkdir("inside", 0700), 0);
  g_inside = open("inside", O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < kFiles; ++i) {
    char name[32];
    sprintf(name, "file%d", i);
    int fd = openat(g_inside, name, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
  }
  CHECK_EQUAL(symlink("file7", "inside/link"), 0);
  int path = open("inside/file9", O_PATH), link = open("inside/link", O_PATH | O_NOFOLLOW),
      reading = open("inside", O_RDONLY);
  CHECK(path >= 0 && link >= 0 && reading >= 0);
  CHECK(read_names(reading, 1500, seen) > 10);
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(NULL);
  while (read_names(reading, 4096, seen) > 0) {
  }
  for (int i = 0; i < kFiles; ++i)
    if (!seen[i]) target_fail("file%d is never listed", i);
  char name[32] = "";
  CHECK_EQUAL(readlinkat(link, "", name, sizeof name), 5);
  CHECK(strcmp(name, "file7") == 0);
  CHECK_EQUAL(fcntl(path, F_GETFL) & O_PATH, O_PATH);
  CHECK_EQUAL(fcntl(link, F_GETFL) & (O_PATH | O_NOFOLLOW), O_PATH | O_NOFOLLOW);
  CHECK(read(path, name, 1) == -1 && errno == EBADF);
  struct stat by_path, named;
  CHECK(fstat(path, &by_path) == 0 && stat("inside/file9", &named) == 0);
  CHECK_EQUAL(by_path.st_ino, named.st_ino);
  release(1);
  expect_exit(below, 1);
  target_pass();
}
