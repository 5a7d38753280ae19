// A ring that always has requests in flight: a thread of its own reads a file by it, asynchronously, and counts. Every
// request is answered once, with what the file holds, and no call is broken off.
#include "../uring.h"

enum { kDepth = 16, kPart = 4096, kParts = 64 };

static struct uring g_ring;
static int g_file;
static char g_buffer[kDepth][kPart];
static uint64_t g_asked, g_answered;
static _Atomic bool g_stop;

static void ask(unsigned slot) {
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_READ, g_asked << 8 | slot);
  memset(g_buffer[slot], 0, kPart);
  sqe->fd = g_file;
  sqe->addr = (uintptr_t)g_buffer[slot];
  sqe->len = kPart;
  sqe->off = g_asked % kParts * kPart;
  sqe->flags = IOSQE_ASYNC;
  ++g_asked;
  uring_submit(&g_ring, 1, 0);
}

static void* work(void* unused) {
  (void)unused;
  for (unsigned i = 0; i < kDepth; ++i) ask(i);
  while (g_answered != g_asked) {
    CHECK_EQUAL(syscall(SYS_io_uring_enter, g_ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0), 0);
    struct io_uring_cqe cqe;
    while (uring_take(&g_ring, &cqe)) {
      const unsigned slot = cqe.user_data & 0xff;
      const uint64_t number = cqe.user_data >> 8;
      CHECK_EQUAL(cqe.res, kPart);
      for (int i = 0; i < kPart; ++i) CHECK_EQUAL(g_buffer[slot][i], (char)(number % kParts + 1));
      ++g_answered;
      if (!g_stop) ask(slot);
    }
  }
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!uring_make(&g_ring, kDepth, 0, false)) target_skip("io_uring: %s", strerror(errno));
  g_file = open("content", O_RDWR | O_CREAT, 0600);
  char part[kPart];
  for (int i = 0; i < kParts; ++i) {
    memset(part, i + 1, sizeof part);
    CHECK_EQUAL(write(g_file, part, sizeof part), sizeof part);
  }
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, work, NULL), 0);
  target_ready();
  target_wait(NULL);
  while (__atomic_load_n(&g_answered, __ATOMIC_RELAXED) < 100 * kDepth) usleep(1000);
  g_stop = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK_EQUAL(*uring_sq(&g_ring, g_ring.p.sq_off.dropped), 0);
  target_pass();
}
