// Files of /proc kept open: of the process itself, of a child, by number, of a thread, folders; and where they had been
// read.
#include <dirent.h>

#include "target.h"

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  return 1;
}

static void expect_number(int fd, const char* name, pid_t wanted) {
  char text[4096] = "", line[64];
  CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
  snprintf(line, sizeof line, "\n%s:\t%d\n", name, wanted);
  if (strstr(text, line) == NULL) target_fail("no '%s: %d' in descriptor %d", name, wanted, fd);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pid_t below = start_child(child, NULL);
  char path[64];
  int self = open("/proc/self/status", O_RDONLY);
  snprintf(path, sizeof path, "/proc/%d/status", getpid());
  int number = open(path, O_RDONLY);
  snprintf(path, sizeof path, "/proc/%d/status", below);
  int of_child = open(path, O_RDONLY);
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", get_tid());
  int thread = open(path, O_RDWR);
  int maps = open("/proc/self/maps", O_RDONLY), folder = open("/proc/self", O_RDONLY | O_DIRECTORY),
      fds = open("/proc/self/fd", O_RDONLY | O_DIRECTORY), global = open("/proc/meminfo", O_RDONLY);
  CHECK(self >= 0 && number >= 0 && of_child >= 0 && thread >= 0 && maps >= 0 && folder >= 0 && fds >= 0 &&
        global >= 0);
  char text[4096];
  CHECK_EQUAL(read(self, text, 5), 5);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(lseek(self, 0, SEEK_CUR), 5);
  expect_number(self, "Pid", getpid());
  expect_number(number, "Pid", getpid());
  expect_number(of_child, "PPid", getpid());
  CHECK(read(maps, text, sizeof text) > 0);
  CHECK_EQUAL(write(thread, "renamed", 7), 7);
  snprintf(path, sizeof path, "/proc/%d/status", getpid());
  CHECK(proc_field(path, "Name", text, sizeof text) && strcmp(text, "renamed") == 0);
  int again = openat(folder, "stat", O_RDONLY);
  CHECK(again >= 0 && read(again, text, sizeof text) > 0 && atoi(text) == getpid());
  DIR* stream = fdopendir(fds);
  int count = 0;
  CHECK(stream != NULL);
  while (readdir(stream) != NULL) ++count;
  CHECK(count > 8);
  CHECK(pread(global, text, sizeof text, 0) > 0 && strncmp(text, "MemTotal:", 9) == 0);
  release(1);
  expect_exit(below, 1);
  CHECK(pread(of_child, text, sizeof text, 0) == -1 && errno == ESRCH);
  target_pass();
}
