// MAP_DROPPABLE: the kernel may empty it at any time, so a restored process finds it empty or as it was; it is of that
// kind still. Newer C libraries keep the state of getrandom in such memory.
#include "target.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

enum { kPages = 8 };

static char* g_memory;

static bool has_flag(const char* flag) {
  static char text[1 << 20];
  int fd = open("/proc/self/smaps", O_RDONLY);
  size_t size = 0;
  for (ssize_t got; (got = read(fd, text + size, sizeof text - 1 - size)) > 0;) size += (size_t)got;
  close(fd);
  text[size] = 0;
  char start[32];
  snprintf(start, sizeof start, "%lx-", (unsigned long)g_memory);
  const char* flags = strstr(text, start);
  CHECK(flags != NULL);
  flags = strstr(flags, "VmFlags:");
  CHECK(flags != NULL);
  const char* end = strchr(flags, '\n');
  const char* found = strstr(flags, flag);
  return found != NULL && found < end;
}

static void do_step(int number) { memset(g_memory, number, kPages * PAGE_SIZE); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_memory = mmap(NULL, kPages * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
  if (g_memory == MAP_FAILED) target_skip("MAP_DROPPABLE: %s", strerror(errno));
  memset(g_memory, 77, kPages * PAGE_SIZE);
  CHECK(has_flag(" dp"));
  target_ready();
  target_wait(do_step);
  const char written = (char)(target_steps() == 0 ? 77 : target_steps());
  for (size_t i = 0; i < kPages * PAGE_SIZE; i += 64) CHECK(g_memory[i] == 0 || g_memory[i] == written);
  CHECK(has_flag(" dp"));
  memset(g_memory, 5, kPages * PAGE_SIZE);
  target_pass();
}
