// A pipeline of three other programs in the middle of its work: what they hold in their buffers comes out at the end.
#include <sys/wait.h>

#include "target.h"

enum { kLines = 4000 };

static pid_t run(const char* command, int in, int out) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (dup2(in, 0) == 0 && dup2(out, 1) == 1) execl("/bin/sh", "sh", "-c", command, (char*)NULL);
    _exit(99);
  }
  return child;
}

static void feed(int fd, int from, int to) {
  char line[32];
  for (int i = from; i < to; ++i) {
    int length = snprintf(line, sizeof line, "line %d\n", (i * 7919) % kLines);
    CHECK_EQUAL(write(fd, line, (size_t)length), length);
  }
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int first[2], second[2], third[2];
  CHECK(pipe2(first, O_CLOEXEC) == 0 && pipe2(second, O_CLOEXEC) == 0 && pipe2(third, O_CLOEXEC) == 0);
  int result[2];
  CHECK_EQUAL(pipe2(result, O_CLOEXEC), 0);
  pid_t programs[3] = {run("exec tr e E", first[0], second[1]), run("exec sort -t ' ' -k 2n", second[0], third[1]),
                       run("exec cksum", third[0], result[1])};
  CHECK(close(first[0]) == 0 && close(second[0]) == 0 && close(second[1]) == 0);
  CHECK(close(third[0]) == 0 && close(third[1]) == 0 && close(result[1]) == 0);
  feed(first[1], 0, kLines / 2);
  for (int i = 0; i < 3; ++i) wait_reading(programs[i], 0);
  target_ready();
  target_wait(NULL);
  feed(first[1], kLines / 2, kLines);
  CHECK_EQUAL(close(first[1]), 0);
  char text[64] = "", wanted[64] = "";
  size_t got = 0;
  for (ssize_t count; (count = read(result[0], text + got, sizeof text - 1 - got)) > 0;) got += (size_t)count;
  for (int i = 0; i < 3; ++i) expect_exit(programs[i], 0);
  // The same numbers straight from the start, all of them once.
  FILE* straight = popen("i=0; while [ $i -lt 4000 ]; do echo \"linE $i\"; i=$((i+1)); done | cksum", "r");
  CHECK(straight != NULL && fgets(wanted, sizeof wanted, straight) != NULL && pclose(straight) == 0);
  if (strcmp(text, wanted) != 0) target_fail("the pipeline says '%s', not '%s'", text, wanted);
  target_pass();
}
