// A log that goes on growing between the image and the restore: the process goes on at its recorded offset.
#include "target.h"

static int g_log;
static void step(int number) {
  char line[32];
  int length = snprintf(line, sizeof line, "step %d\n", number);
  CHECK_EQUAL(write(g_log, line, (size_t)length), length);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_log = open("log", O_CREAT | O_WRONLY, 0600);
  CHECK_EQUAL(write(g_log, "start\n", 6), 6);
  target_ready();
  target_wait(step);
  CHECK_EQUAL(lseek(g_log, 0, SEEK_CUR), 6 + 7 * target_steps());
  CHECK_EQUAL(write(g_log, "end\n", 4), 4);
  target_pass();
}
