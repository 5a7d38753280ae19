// Rings with restrictions, one of them not enabled yet; one that goes on after a request that was wrong; one with tags.
#include "../uring.h"

enum { kRestrict = 4, kText = 16, kTag = 4711, kOtherTag = 815 };

struct io_uring_tagged {
  uint32_t count, flags;
  uint64_t reserved, data, tags;
};

static struct uring g_ring, g_later, g_all, g_tags;
static int g_file;
static char g_text[kText] __attribute__((aligned(4096)));

static void restrict_ring(struct uring* r) {
  struct io_uring_restriction rules[kRestrict] = {
      {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
      {.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_ASYNC},
      {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_ENABLE_RINGS},
      {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_PROBE},
  };
  CHECK_EQUAL(syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_RESTRICTIONS, rules, kRestrict), 0);
}

static void enable(struct uring* r) {
  CHECK_EQUAL(syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0), 0);
}

static void ask(struct uring* r, int operation, unsigned char flags, int result) {
  static uint64_t data;
  struct io_uring_sqe* sqe = uring_next(r, operation, ++data);
  sqe->flags = flags;
  if (operation == IORING_OP_READ) sqe->fd = g_file, sqe->addr = (uintptr_t)g_text, sqe->len = kText;
  uring_submit(r, 1, 1);
  uring_expect(r, data, result);
}

static void check_restricted(struct uring* r) {
  ask(r, IORING_OP_NOP, 0, -EACCES);
  ask(r, IORING_OP_READ, 0, kText);
  ask(r, IORING_OP_READ, IOSQE_ASYNC, kText);
  ask(r, IORING_OP_READ, IOSQE_IO_DRAIN, -EACCES);
  int fd = -1;
  CHECK(syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_EVENTFD, &fd, 1) == -1 && errno == EACCES);
}

/// The first request is wrong, and the other one is taken all the same.
static void check_all(void) {
  uring_next(&g_all, 250, 1);
  uring_next(&g_all, IORING_OP_NOP, 2);
  uring_submit(&g_all, 2, 2);
  uring_expect(&g_all, 1, -EINVAL);
  uring_expect(&g_all, 2, 0);
}

static void register_tagged(unsigned how, const void* data, uint32_t count, const uint64_t* tags) {
  struct io_uring_tagged all = {.count = count, .data = (uintptr_t)data, .tags = (uintptr_t)tags};
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_tags.fd, how, &all, sizeof all), 0);
}

/// What is taken out of its slot is told by its tag.
static void drop(unsigned how, uint32_t slot, const void* data, uint64_t tag) {
  struct {
    uint32_t offset, reserved;
    uint64_t data, tags;
    uint32_t count, more;
  } update = {.offset = slot, .data = (uintptr_t)data, .count = 1};
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_tags.fd, how, &update, sizeof update), 1);
  struct io_uring_cqe cqe = {0};
  for (int i = 0; !uring_take(&g_tags, &cqe); ++i) {
    CHECK(i < 10000);
    syscall(SYS_io_uring_enter, g_tags.fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
    usleep(500);
  }
  CHECK_EQUAL(cqe.user_data, tag);
}

static void step(int number) {
  (void)number;
  check_restricted(&g_ring);
  check_all();
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!uring_make(&g_ring, 4, IORING_SETUP_R_DISABLED, false)) target_skip("io_uring: %s", strerror(errno));
  if (!uring_make(&g_all, 4, IORING_SETUP_SUBMIT_ALL, false)) target_skip("IORING_SETUP_SUBMIT_ALL");
  CHECK(uring_make(&g_later, 4, IORING_SETUP_R_DISABLED, false));
  CHECK(uring_make(&g_tags, 4, 0, false));
  g_file = open("content", O_RDWR | O_CREAT, 0600);
  CHECK_EQUAL(write(g_file, "0123456789abcdef0123456789abcdef", 2 * kText), 2 * kText);
  CHECK_EQUAL(lseek(g_file, 0, SEEK_SET), 0);
  restrict_ring(&g_ring), restrict_ring(&g_later);
  enable(&g_ring);
  check_restricted(&g_ring);
  check_all();
  const int files[2] = {-1, g_file}, none = -1;
  const uint64_t tags[2] = {0, kTag}, others[1] = {kOtherTag};
  const struct {
    void* base;
    size_t size;
  } buffers[1] = {{g_text, kText}}, empty = {NULL, 0};
  register_tagged(IORING_REGISTER_FILES2, files, 2, tags);
  register_tagged(IORING_REGISTER_BUFFERS2, buffers, 1, others);

  target_ready();
  target_wait(step);

  check_restricted(&g_ring);
  CHECK(syscall(SYS_io_uring_enter, g_later.fd, 0, 0, 0, NULL, 0) == -1 && errno == EBADFD);
  enable(&g_later);
  check_restricted(&g_later);
  check_all();
  drop(IORING_REGISTER_FILES_UPDATE2, 1, &none, kTag);
  drop(IORING_REGISTER_BUFFERS_UPDATE, 0, &empty, kOtherTag);
  target_pass();
}
