// An AIO context that always has requests in flight: a thread of its own reads a file by it, past the page cache where
// the disk allows that, and counts. Every request is answered once, with what the file holds.
#include <linux/aio_abi.h>

#include "../target.h"

enum { kDepth = 16, kPart = 4096, kParts = 64 };

static aio_context_t g_context;
static int g_file;
static char g_buffer[kDepth][kPart] __attribute__((aligned(4096)));
static struct iocb g_request[kDepth];
static uint64_t g_asked, g_answered;
static _Atomic bool g_stop;

static void ask(unsigned slot) {
  memset(g_buffer[slot], 0, kPart);
  g_request[slot] = (struct iocb){.aio_data = g_asked << 8 | slot, .aio_lio_opcode = IOCB_CMD_PREAD,
                                  .aio_fildes = (unsigned)g_file, .aio_buf = (uintptr_t)g_buffer[slot],
                                  .aio_nbytes = kPart, .aio_offset = (long long)(g_asked % kParts * kPart)};
  struct iocb* list = &g_request[slot];
  CHECK_EQUAL(syscall(SYS_io_submit, g_context, 1, &list), 1);
  ++g_asked;
}

static void* work(void* unused) {
  (void)unused;
  for (unsigned i = 0; i < kDepth; ++i) ask(i);
  while (g_answered != g_asked) {
    struct io_event events[kDepth];
    long got = syscall(SYS_io_getevents, g_context, 1, kDepth, events, NULL);
    if (got < 0 && errno == EINTR) continue;
    CHECK(got > 0);
    for (long i = 0; i < got; ++i) {
      const unsigned slot = events[i].data & 0xff;
      const uint64_t number = events[i].data >> 8;
      CHECK_EQUAL(events[i].res, kPart);
      for (int k = 0; k < kPart; ++k) CHECK_EQUAL(g_buffer[slot][k], (char)(number % kParts + 1));
      ++g_answered;
      if (!g_stop) ask(slot);
    }
  }
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int file = open("content", O_RDWR | O_CREAT, 0600);
  for (int i = 0; i < kParts; ++i) {
    memset(g_buffer[0], i + 1, kPart);
    CHECK_EQUAL(write(file, g_buffer[0], kPart), kPart);
  }
  CHECK_EQUAL(fsync(file), 0);
  g_file = open("content", O_RDONLY | O_DIRECT);
  if (g_file < 0) g_file = file;
  if (syscall(SYS_io_setup, kDepth, &g_context) != 0) target_skip("no AIO here: %s", strerror(errno));
  pthread_t thread = start_thread(work, NULL);
  target_ready();
  target_wait(NULL);
  const uint64_t before = __atomic_load_n(&g_answered, __ATOMIC_RELAXED);
  while (__atomic_load_n(&g_answered, __ATOMIC_RELAXED) < before + 200) usleep(1000);
  g_stop = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
