// A ring that parent and child have in common since a fork, as they have what the program knows of it.
#include "../uring.h"

static struct uring* g_ring;

static int work(void* unused) {
  (void)unused;
  uring_no_ops(g_ring, 20);
  child_wait(1);
  uring_no_ops(g_ring, 100);
  return 7;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_ring = mmap(NULL, sizeof *g_ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_ring != MAP_FAILED);
  if (!uring_make(g_ring, 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  uring_no_ops(g_ring, 50);
  pid_t child = start_child(work, NULL);
  target_ready();
  target_wait(NULL);
  uring_no_ops(g_ring, 100);
  release(1);
  expect_exit(child, 7);
  uring_no_ops(g_ring, 100);
  expect_childless();
  target_pass();
}
