// A chain of twenty generations.
#include "target.h"

enum { kDepth = 20 };

static int generation(void* depth) {
  int number = *(int*)depth, next = number + 1;
  pid_t parent = getppid(), below = number < kDepth ? start_child(generation, &next) : 0;
  child_wait(1);
  CHECK_EQUAL(getppid(), parent);
  if (below != 0) expect_exit(below, next);
  expect_childless();
  return number;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int first = 1;
  pid_t below = start_child(generation, &first);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(below, 1);
  target_pass();
}
