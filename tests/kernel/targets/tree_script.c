// A child that runs a script by its "#!" line, and waits in the middle of it.
#include <sys/wait.h>

#include "target.h"

static void expect_command(pid_t child, const char* script) {
  char path[64], text[256] = "", exe[256] = "";
  snprintf(path, sizeof path, "/proc/%d/cmdline", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = read(fd, text, sizeof text - 1);
  CHECK(fd >= 0 && got > 0 && close(fd) == 0);
  for (ssize_t i = 0; i < got - 1; ++i)
    if (text[i] == 0) text[i] = ' ';
  char wanted[256];
  snprintf(wanted, sizeof wanted, "/bin/sh %s an argument", script);
  if (strcmp(text, wanted) != 0) target_fail("the script's command line is '%s'", text);
  snprintf(path, sizeof path, "/proc/%d/exe", child);
  CHECK(readlink(path, exe, sizeof exe - 1) > 0 && strstr(exe, "script") == NULL);
  snprintf(path, sizeof path, "/proc/%d/status", child);
  CHECK(proc_field(path, "Name", text, sizeof text) && strcmp(text, "script") == 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int feed[2], script = open("script", O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
  static const char kText[] =
      "#!/bin/sh\nbefore=$1-$$\n: >started\nread -r word\n[ \"$before\" = \"an argument-$$\" ] || exit 2\n"
      "exit \"$word\"\n";
  CHECK_EQUAL(write(script, kText, sizeof kText - 1), sizeof kText - 1);
  CHECK_EQUAL(close(script), 0);
  CHECK_EQUAL(pipe2(feed, O_CLOEXEC), 0);
  pid_t child = fork();
  if (child == 0) {
    if (dup2(feed[0], 0) == 0) execl("./script", "./script", "an argument", NULL);
    _exit(99);
  }
  CHECK(child > 0);
  for (int i = 0; i < 5000 && access("started", F_OK) != 0; ++i) sleep_ms(1);
  CHECK_EQUAL(access("started", F_OK), 0);
  wait_reading(child, 0);
  expect_command(child, "./script");
  target_ready();
  target_wait(NULL);
  expect_command(child, "./script");
  CHECK_EQUAL(write(feed[1], "37\n", 3), 3);
  expect_exit(child, 37);
  target_pass();
}
