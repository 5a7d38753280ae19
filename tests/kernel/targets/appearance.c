// What ps shows: arguments (rewritten in place, too), environment, name, exe link, auxiliary vector, session and group.
#include <elf.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#include "target.h"

static size_t read_proc(const char* path, char* out, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) target_fail("%s: %s", path, strerror(errno));
  ssize_t got = read(fd, out, size);
  if (got < 0) target_fail("%s: %s", path, strerror(errno));
  close(fd);
  return (size_t)got;
}

static const char* const kFiles[] = {"/proc/self/cmdline", "/proc/self/environ", "/proc/self/auxv", "/proc/self/comm"};
static char g_before[4][65536], g_after[4][65536];

static void positions(char* out, size_t size) {  // fields of stat from startcode on that name bounds of memory
  char text[4096];
  size_t got = read_proc("/proc/self/stat", text, sizeof text - 1);
  text[got] = 0;
  char* at = strrchr(text, ')') + 2;
  unsigned long field[64] = {0};
  int number = 3;
  for (char* word = strtok(at, " "); word != NULL && number < 64; word = strtok(NULL, " ")) {
    if (number > 3) field[number] = strtoul(word, NULL, 10);
    ++number;
  }
  snprintf(out, size, "%lx %lx %lx %lx %lx %lx %lx %lx %lx %lx, group %lu, session %lu, terminal %lu", field[26],
           field[27], field[28], field[45], field[46], field[47], field[48], field[49], field[50], field[51], field[5],
           field[6], field[7]);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  setenv("TARGET_ADDED", "later", 1);
  argv[0][0] = '#';
  CHECK_EQUAL(prctl(PR_SET_NAME, "odd (name) 7"), 0);
  size_t size[4];
  for (int i = 0; i < 4; ++i) size[i] = read_proc(kFiles[i], g_before[i], sizeof g_before[i]);
  CHECK_EQUAL(g_before[0][0], '#');
  char exe[4096], exe_now[4096], place[512], place_now[512];
  ssize_t length = readlink("/proc/self/exe", exe, sizeof exe);
  CHECK(length > 0);
  positions(place, sizeof place);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < 4; ++i) {
    size_t now = read_proc(kFiles[i], g_after[i], sizeof g_after[i]);
    if (now != size[i] || memcmp(g_before[i], g_after[i], now) != 0) target_fail("%s differs", kFiles[i]);
  }
  CHECK_EQUAL(readlink("/proc/self/exe", exe_now, sizeof exe_now), length);
  CHECK(memcmp(exe, exe_now, (size_t)length) == 0);
  positions(place_now, sizeof place_now);
  if (strcmp(place, place_now) != 0) target_fail("stat has %s, not %s", place_now, place);
  CHECK(strcmp(getenv("TARGET_ADDED"), "later") == 0);
  argv[0][0] = '%';
  CHECK(read_proc(kFiles[0], g_after[0], sizeof g_after[0]) == size[0] && g_after[0][0] == '%');
  target_pass();
}
