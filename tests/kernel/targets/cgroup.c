// Membership in a control group of version 2.
#include <sys/stat.h>

#include "target.h"

/// Where the hierarchy is mounted; skips when it is not.
static void find_mount(char* out, size_t size) {
  FILE* stream = fopen("/proc/self/mountinfo", "re");
  CHECK(stream != NULL);
  char line[4096];
  out[0] = 0;
  while (fgets(line, sizeof line, stream) != NULL) {
    char root[1024], path[1024];
    if (strstr(line, " - cgroup2 ") == NULL || sscanf(line, "%*s %*s %*s %1023s %1023s", root, path) != 2) continue;
    if (strcmp(root, "/") == 0) snprintf(out, size, "%s", path);
  }
  fclose(stream);
  if (out[0] == 0) target_skip("no cgroup2 is mounted");
}

static bool move_to(const char* group) {
  char path[1200];
  snprintf(path, sizeof path, "%s/cgroup.procs", group);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool moved = fd >= 0 && write(fd, "0", 1) == 1;
  if (fd >= 0) close(fd);
  return moved;
}

static void own_group(char* out, size_t size) {
  char text[4096] = "";
  int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
  close(fd);
  char* line = strstr(text, "0::");
  CHECK(line != NULL);
  line[strcspn(line, "\n")] = 0;
  snprintf(out, size, "%s", line + 3);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char mount[1024], before[1024], group[1100], now[1024];
  find_mount(mount, sizeof mount);
  own_group(before, sizeof before);
  snprintf(group, sizeof group, "%s/ckpt-target-%d", mount, getpid());
  if (mkdir(group, 0755) != 0 && errno != EEXIST) target_skip("no control group can be made: %s", strerror(errno));
  if (!move_to(group)) {
    rmdir(group);
    target_skip("cannot enter a control group: %s", strerror(errno));
  }
  target_ready();
  target_wait(NULL);
  own_group(now, sizeof now);
  CHECK(strcmp(now, group + strlen(mount)) == 0);
  char back[2100];
  snprintf(back, sizeof back, "%s%s", mount, before);
  CHECK(move_to(back));
  CHECK_EQUAL(rmdir(group), 0);
  target_pass();
}
