// Native AIO contexts: fresh, used many times over, with events nobody has taken (also across the end of the ring), one
// after another that has ended, with a ring that was moved. What they answer is what the files hold.
#include <linux/aio_abi.h>
#include <sched.h>

#include "../target.h"

enum { kContexts = 6, kPart = 512, kParts = 16, kMost = 256 };

struct ring {
  unsigned id, nr, head, tail, magic, compatible, incompatible, header_size;
};

static aio_context_t g_context[kContexts];
static int g_file;
static char g_part[kMost][kPart];
static uint64_t g_number;  // of the last request

static const struct ring* ring_of(int which) { return (const struct ring*)(uintptr_t)g_context[which]; }

static bool try_submit(int which) {
  const uint64_t number = g_number + 1;
  struct iocb request = {.aio_data = number, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)g_file,
                         .aio_buf = (uintptr_t)g_part[number % kMost], .aio_nbytes = kPart,
                         .aio_offset = (long long)(number % kParts * kPart)};
  struct iocb* list = &request;
  const long done = syscall(SYS_io_submit, g_context[which], 1, &list);
  if (done != 1) CHECK_EQUAL(errno, EAGAIN);
  else g_number = number;
  return done == 1;
}

static void submit(int which, unsigned count) {
  for (unsigned i = 0; i < count; ++i) CHECK(try_submit(which));
}

/// As many as there is room for, from several processors.
static unsigned submit_all(int which) {
  unsigned count = 0;
  for (int processor = 0, full = 0; full < 8 && count < kMost - 1; ++processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor % 8, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) ++full;  // there is no such one
    else if (try_submit(which)) ++count, full = 0;
    else ++full;
  }
  return count;
}

/// The next `count` events are those of these requests, in order.
static void expect(int which, unsigned count, uint64_t first) {
  struct timespec second = {.tv_sec = 1};
  for (unsigned i = 0; i < count; ++i) {
    struct io_event event;
    CHECK_EQUAL(syscall(SYS_io_getevents, g_context[which], 1, 1, &event, &second), 1);
    CHECK_EQUAL(event.data, first + i);
    CHECK_EQUAL(event.res, kPart);
    const char* part = g_part[event.data % kMost];
    for (int k = 0; k < kPart; ++k) CHECK_EQUAL(part[k], (char)(event.data % kParts + 1));
  }
}

static void expect_none(int which) {
  struct timespec now = {0};
  struct io_event event;
  CHECK_EQUAL(syscall(SYS_io_getevents, g_context[which], 1, 1, &event, &now), 0);
}

static void use(int which, unsigned count) {
  while (count != 0) {
    const unsigned some = count < 7 ? count : 7;
    submit(which, some);
    expect(which, some, g_number - some + 1);
    count -= some;
  }
}

static void do_step(int number) {
  use(0, 3);
  use(1, 40 + (unsigned)number);
  use(4, 1);
}

static void make_file(void) {
  g_file = open("content", O_RDWR | O_CREAT, 0600);
  char text[kParts * kPart];
  for (int i = 0; i < kParts * kPart; ++i) text[i] = (char)(i / kPart + 1);
  CHECK_EQUAL(write(g_file, text, sizeof text), sizeof text);
}

/// To where nobody chose it to be.
static void move_ring(int which) {
  const size_t size = ((ring_of(which)->nr + 1) * sizeof(struct io_event) + PAGE_SIZE - 1) / PAGE_SIZE * PAGE_SIZE;
  void* place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(place != MAP_FAILED);
  CHECK(mremap((void*)(uintptr_t)g_context[which], size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
  g_context[which] = (aio_context_t)(uintptr_t)place;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  make_file();
  aio_context_t ended = 0;
  if (syscall(SYS_io_setup, 3, &ended) != 0) target_skip("no AIO here: %s", strerror(errno));
  const unsigned requests[kContexts] = {1, 100, 300, 64, 5, 7};
  for (int i = 0; i < kContexts; ++i) CHECK_EQUAL(syscall(SYS_io_setup, requests[i], &g_context[i]), 0);
  CHECK_EQUAL(syscall(SYS_io_destroy, ended), 0);
  use(1, 2000);
  // Events up to the end of the ring and on from its begin.
  use(2, ring_of(2)->nr - 20);
  const uint64_t wrapped = g_number + 1;
  submit(2, 50);
  CHECK(ring_of(2)->head > ring_of(2)->tail);
  const uint64_t waiting = g_number + 1;
  submit(3, 30);
  use(4, 200);
  use(5, 50);
  cpu_set_t all;
  CHECK_EQUAL(sched_getaffinity(0, sizeof all, &all), 0);
  const uint64_t full = g_number + 1;
  const unsigned many = submit_all(5);
  CHECK(many > ring_of(5)->nr / 2 || many == kMost - 1);
  CHECK_EQUAL(sched_setaffinity(0, sizeof all, &all), 0);
  move_ring(4);

  target_ready();
  target_wait(do_step);

  CHECK_EQUAL(ring_of(2)->head, ring_of(2)->nr - 20);
  CHECK_EQUAL(ring_of(3)->tail, 30);
  expect(2, 50, wrapped);
  expect(3, 30, waiting);
  expect(5, many, full);
  for (int i = 0; i < kContexts; ++i) {
    expect_none(i);
    use(i, 2 * ring_of(i)->nr + 5);
    CHECK_EQUAL(syscall(SYS_io_destroy, g_context[i]), 0);
  }
  target_pass();
}
