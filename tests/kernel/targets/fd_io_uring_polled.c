// Rings that a thread of the kernel polls: one of them bound to a processor, one that uses another ring's thread, one
// with completions nobody has taken; the threads sleep and are woken, and go to sleep when they did before.
#include <dirent.h>

#include "../uring.h"

enum { kRings = 3, kIdleMs = 1500, kShortMs = 20, kUnread = 5, kText = 64 };

static struct uring g_ring[kRings];
static unsigned g_done;
static char g_text[kText];
static int g_file;

static bool make(struct uring* r, unsigned flags, unsigned idle, int other) {
  memset(r, 0, sizeof *r);
  r->p.flags = IORING_SETUP_SQPOLL | flags;
  r->p.sq_thread_idle = idle;
  if (other >= 0) r->p.wq_fd = (unsigned)other;
  r->fd = (int)syscall(SYS_io_uring_setup, 8, &r->p);
  if (r->fd < 0) return false;
  size_t cq = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
  size_t sq = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
  const int prot = PROT_READ | PROT_WRITE;
  r->sq = r->cq = mmap(NULL, sq > cq ? sq : cq, prot, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
  r->sqes = mmap(NULL, r->p.sq_entries * sizeof *r->sqes, prot, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
  CHECK(r->sq != MAP_FAILED && (void*)r->sqes != MAP_FAILED);
  for (unsigned i = 0; i < r->p.sq_entries; ++i) uring_sq(r, r->p.sq_off.array)[i] = i;
  return true;
}

static bool sleeps(struct uring* r) {
  return (__atomic_load_n(uring_sq(r, r->p.sq_off.flags), __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP) != 0;
}

/// As a library does it: no system call as long as the thread is awake.
static void hand_over(struct uring* r) {
  __atomic_store_n(uring_sq(r, r->p.sq_off.tail), r->sq_tail, __ATOMIC_SEQ_CST);
  if (sleeps(r)) CHECK(syscall(SYS_io_uring_enter, r->fd, 1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0) >= 0);
}

static void await(struct uring* r, uint64_t data, int result) {
  struct io_uring_cqe cqe;
  for (int i = 0; !uring_take(r, &cqe); ++i) {
    CHECK(i < 20000);
    usleep(500);
  }
  CHECK_EQUAL(cqe.user_data, data);
  CHECK_EQUAL(cqe.res, result);
}

static void use(struct uring* r, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    uring_next(r, IORING_OP_NOP, ++g_done);
    hand_over(r);
    await(r, g_done, 0);
  }
}

static void read_file(struct uring* r, int file, unsigned char flags) {
  struct io_uring_sqe* sqe = uring_next(r, IORING_OP_READ, ++g_done);
  memset(g_text, 0, sizeof g_text);
  sqe->fd = file, sqe->flags = flags;
  sqe->addr = (uintptr_t)g_text, sqe->len = kText;
  hand_over(r);
  await(r, g_done, kText);
  for (int i = 0; i < kText; ++i) CHECK_EQUAL(g_text[i], i + 1);
}

/// Threads of the kernel that poll: how many, and how many of them may run on processor 0 alone.
static void count_threads(int* all, int* bound) {
  *all = *bound = 0;
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent* entry; (entry = readdir(tasks)) != NULL;) {
    char path[512], value[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    if (entry->d_name[0] == '.' || !proc_field(path, "Name", value, sizeof value)) continue;
    if (strncmp(value, "iou-sqp-", 8) != 0) continue;
    ++*all;
    if (proc_field(path, "Cpus_allowed_list", value, sizeof value) && strcmp(value, "0") == 0) ++*bound;
  }
  closedir(tasks);
}

static void step(int number) {
  use(&g_ring[0], (unsigned)number);
  use(&g_ring[1], 3);
}

static void await_sleep(struct uring* r) {
  for (int i = 0; !sleeps(r); ++i) {
    CHECK(i < 20000);
    usleep(1000);
  }
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (!make(&g_ring[0], IORING_SETUP_SQ_AFF, kIdleMs, -1)) target_skip("io_uring: %s", strerror(errno));
  CHECK(make(&g_ring[1], IORING_SETUP_ATTACH_WQ, kShortMs, g_ring[0].fd));
  CHECK(make(&g_ring[2], 0, kShortMs, -1));
  g_file = open("content", O_RDWR | O_CREAT, 0600);
  char text[kText];
  for (int i = 0; i < kText; ++i) text[i] = (char)(i + 1);
  CHECK_EQUAL(pwrite(g_file, text, kText, 0), kText);
  const int file = g_file;
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring[2].fd, IORING_REGISTER_FILES, &file, 1), 0);
  for (int i = 0; i < kRings; ++i) use(&g_ring[i], 50 + (unsigned)i);
  read_file(&g_ring[0], g_file, 0);
  read_file(&g_ring[2], 0, IOSQE_FIXED_FILE);
  for (unsigned i = 0; i < kUnread; ++i) {
    uring_next(&g_ring[2], IORING_OP_NOP, 9000 + i);
    hand_over(&g_ring[2]);
  }
  await_sleep(&g_ring[2]);
  int all = 0, bound = 0;
  count_threads(&all, &bound);
  CHECK_EQUAL(all, 2);
  CHECK_EQUAL(bound, 1);

  target_ready();
  target_wait(step);

  count_threads(&all, &bound);
  CHECK_EQUAL(all, 2);
  CHECK_EQUAL(bound, 1);
  for (unsigned i = 0; i < kUnread; ++i) await(&g_ring[2], 9000 + i, 0);
  for (int i = 0; i < kRings; ++i) use(&g_ring[i], 40);
  lseek(g_file, 0, SEEK_SET);
  read_file(&g_ring[0], g_file, 0);
  read_file(&g_ring[2], 0, IOSQE_FIXED_FILE);
  for (int i = 0; i < kRings; ++i) CHECK_EQUAL(*uring_sq(&g_ring[i], g_ring[i].p.sq_off.dropped), 0);
  // The longer time of the rings that a thread has is that of the thread.
  await_sleep(&g_ring[0]);
  use(&g_ring[0], 1);
  const int64_t woken = now_ns();
  await_sleep(&g_ring[0]);
  CHECK((now_ns() - woken) / 1000000 >= kIdleMs * 9 / 10);
  target_pass();
}
