// Rings of io_uring: used many times over, with completions nobody has taken, with requests that are written and not
// handed over, without an array, mapped in two and in three pieces, with registered files and buffers, with a worker of
// the kernel's.
#include "../uring.h"

enum { kRings = 4, kUsed = 1000, kText = 64 };

static struct uring g_ring[kRings], g_first;
static int g_file, g_duplicate;
static char g_fixed[kText] __attribute__((aligned(4096)));

/// By a program that uses the first entry alone, and leaves the array as the kernel has made it.
static void use_first(unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    memset(&g_first.sqes[0], 0, sizeof g_first.sqes[0]);
    g_first.sqes[0].opcode = IORING_OP_NOP;
    g_first.sqes[0].user_data = 800 + i;
    ++g_first.sq_tail;
    uring_submit(&g_first, 1, 1);
    uring_expect(&g_first, 800 + i, 0);
  }
}

static void read_file(struct uring* r, bool registered, uint64_t data) {
  struct io_uring_sqe* sqe = uring_next(r, registered ? IORING_OP_READ_FIXED : IORING_OP_READ, data);
  memset(g_fixed, 0, sizeof g_fixed);
  sqe->fd = registered ? 1 : g_file;
  sqe->flags = registered ? IOSQE_FIXED_FILE : IOSQE_ASYNC;
  sqe->addr = (uintptr_t)g_fixed;
  sqe->len = kText;
  uring_submit(r, 1, 1);
  uring_expect(r, data, kText);
  for (int i = 0; i < kText; ++i) CHECK_EQUAL(g_fixed[i], i + 1);
}

static void do_step(int number) {
  for (int i = 0; i < kRings; ++i) {
    if (g_ring[i].fd >= 0 && i != 1) uring_no_ops(&g_ring[i], (unsigned)number * 3);
  }
  read_file(&g_ring[0], false, 500);
  read_file(&g_ring[2], true, 501);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!uring_make(&g_ring[0], 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  CHECK(uring_make(&g_ring[1], 256, IORING_SETUP_CLAMP, true));
  CHECK(uring_make(&g_ring[2], 1, 0, false));
  if (!uring_make(&g_ring[3], 16, IORING_SETUP_NO_SQARRAY, false)) g_ring[3].fd = -1;
  CHECK(uring_make(&g_first, 8, 0, false));
  memset(uring_sq(&g_first, g_first.p.sq_off.array), 0, 8 * sizeof(unsigned));
  use_first(21);
  for (int i = 0; i < kRings; ++i) {
    if (g_ring[i].fd >= 0) uring_no_ops(&g_ring[i], kUsed + (unsigned)i);
  }
  g_file = open("content", O_RDWR | O_CREAT, 0600);
  char text[kText];
  for (int i = 0; i < kText; ++i) text[i] = (char)(i + 1);
  CHECK_EQUAL(write(g_file, text, kText), kText);
  g_duplicate = dup2(g_ring[0].fd, 77);
  int files[3] = {-1, g_file, -1};
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring[2].fd, IORING_REGISTER_FILES, files, 3), 0);
  struct iovec {
    void* base;
    size_t size;
  } buffers[2] = {{g_fixed, kText}, {text, kText}};
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring[2].fd, IORING_REGISTER_BUFFERS, buffers, 2), 0);
  read_file(&g_ring[0], false, 1);
  read_file(&g_ring[2], true, 2);
  // Completions that are not taken, the end of the queue among them; requests that are not handed over.
  for (unsigned i = 0; i < 500; ++i) {
    uring_next(&g_ring[1], IORING_OP_NOP, 9000 + i);
    uring_submit(&g_ring[1], 1, 0);
  }
  for (unsigned i = 0; i < 5; ++i) uring_next(&g_ring[1], IORING_OP_NOP, 7000 + i);

  target_ready();
  target_wait(do_step);

  for (unsigned i = 0; i < 500; ++i) uring_expect(&g_ring[1], 9000 + i, 0);
  struct io_uring_cqe none;
  CHECK(!uring_take(&g_ring[1], &none));
  uring_submit(&g_ring[1], 5, 5);
  for (unsigned i = 0; i < 5; ++i) uring_expect(&g_ring[1], 7000 + i, 0);
  for (int i = 0; i < kRings; ++i) {
    if (g_ring[i].fd < 0) continue;
    // More than both queues hold.
    uring_no_ops(&g_ring[i], 700);
    CHECK_EQUAL(*uring_sq(&g_ring[i], g_ring[i].p.sq_off.dropped), 0);
    CHECK_EQUAL(*uring_cq(&g_ring[i], g_ring[i].p.cq_off.overflow), 0);
  }
  use_first(20);
  read_file(&g_ring[0], false, 3);
  read_file(&g_ring[2], true, 4);
  struct uring duplicate = g_ring[0];
  duplicate.fd = g_duplicate;
  uring_no_ops(&duplicate, 3);
  target_pass();
}
