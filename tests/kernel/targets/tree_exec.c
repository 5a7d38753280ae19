// Children that run other programs: one that sleeps, one in the middle of reading a pipe.
#include <ctype.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "target.h"

extern char** environ;

static pid_t spawn(char* const* command, int in, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  pid_t child = 0;
  errno = posix_spawnp(&child, command[0], &actions, NULL, command, environ);
  if (errno != 0) target_fail("%s: %s", command[0], strerror(errno));
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

static void wait_size(const char* path, off_t size) {
  struct stat about;
  for (int i = 0; i < 5000; ++i) {
    if (stat(path, &about) == 0 && about.st_size >= size) return;
    sleep_ms(1);
  }
  target_fail("%s does not reach %ld bytes", path, (long)size);
}

/// Until it has loaded what it needs and sleeps.
static void wait_asleep(pid_t pid) {
  char path[64], call[64];
  snprintf(path, sizeof path, "/proc/%d/syscall", pid);
  for (int i = 0; i < 5000; ++i) {
    FILE* file = fopen(path, "re");
    if (file != NULL && fgets(call, sizeof call, file) != NULL && strtol(call, NULL, 10) == SYS_clock_nanosleep &&
        isdigit(call[0])) {
      fclose(file);
      return;
    }
    if (file != NULL) fclose(file);
    sleep_ms(1);
  }
  target_fail("%d does not sleep", pid);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int feed[2], null = open("/dev/null", O_RDWR | O_CLOEXEC),
               out = open("copy", O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
  CHECK(null >= 0 && out >= 0);
  CHECK_EQUAL(pipe2(feed, O_CLOEXEC), 0);
  char* sleep_command[] = {"sleep", "1000", NULL};
  char* cat_command[] = {"cat", NULL};
  pid_t sleeper = spawn(sleep_command, null, null), cat = spawn(cat_command, feed[0], out);
  CHECK_EQUAL(close(feed[0]), 0);
  CHECK_EQUAL(write(feed[1], "one ", 4), 4);
  wait_size("copy", 4);
  wait_asleep(sleeper);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(ftruncate(out, 4), 0);  // an earlier instant of this test may have been restored before
  CHECK_EQUAL(write(feed[1], "two", 3), 3);
  wait_size("copy", 7);
  CHECK_EQUAL(close(feed[1]), 0);
  expect_exit(cat, 0);
  char text[16] = "";
  CHECK_EQUAL(pread(out, text, sizeof text, 0), 7);
  CHECK(strcmp(text, "one two") == 0);
  CHECK_EQUAL(waitpid(sleeper, NULL, WNOHANG), 0);
  CHECK_EQUAL(kill(sleeper, SIGTERM), 0);
  expect_signal(sleeper, SIGTERM);
  target_pass();
}
