// Memory that somebody else's io_uring writes to: its pages are pinned, and no page table tells of it. A stranger (a
// process that is not of the tree) holds the ring; with each step it reads a file into the buffer that this process
// registered. With the argument "once" it lets go of the ring after the first step, so that nothing is pinned any more.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "target.h"

enum { kSize = 8 * 4096 };
static unsigned char* g_buffer;
static bool g_once;

static void fill(int fd, int step) {
  unsigned char bytes[kSize];
  for (int i = 0; i < kSize; ++i) bytes[i] = (unsigned char)(i * 7 + step * 31 + i / 4096);
  if (pwrite(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) _exit(1);
}

/// Reads the file "content" of each step into the buffer as its file "read.N" appears, and answers by removing it.
static void serve(int ring, const struct io_uring_params* params, unsigned char* buffer) {
  size_t ring_size = params->sq_off.array + params->sq_entries * sizeof(unsigned);
  unsigned char* queue = mmap(NULL, ring_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  struct io_uring_sqe* entries =
      mmap(NULL, params->sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  int content = open("content", O_RDWR | O_CREAT, 0600);
  if (queue == MAP_FAILED || entries == MAP_FAILED || content < 0) _exit(1);
  for (int step = 0;; ++step) {
    char name[32];
    snprintf(name, sizeof name, "read.%d", step);
    for (int tries = 0; access(name, F_OK) != 0; usleep(1000)) {
      if (access("result", F_OK) == 0 || ++tries > 60000) _exit(0);  // nobody will ask any more
    }
    fill(content, step);
    memset(&entries[0], 0, sizeof entries[0]);
    entries[0].opcode = IORING_OP_READ_FIXED, entries[0].fd = content;
    entries[0].addr = (uintptr_t)buffer, entries[0].len = kSize;
    unsigned* tail = (unsigned*)(void*)(queue + params->sq_off.tail);
    unsigned mask = *(unsigned*)(void*)(queue + params->sq_off.ring_mask);
    ((unsigned*)(void*)(queue + params->sq_off.array))[*tail & mask] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) _exit(1);
    if (g_once && step == 1)
      close(ring), munmap(queue, ring_size), munmap(entries, params->sq_entries * sizeof *entries);
    unlink(name);
    if (g_once && step == 1) _exit(0);
  }
}

/// A grandchild that init, or whoever stands in for it, takes over.
static void start_stranger(int ring, const struct io_uring_params* params) {
  pid_t child = fork();
  if (child == 0) {
    if (fork() != 0) _exit(0);
    setsid();
    serve(ring, params, g_buffer);
  }
  CHECK_EQUAL(waitpid(child, NULL, 0), child);
}

static void ask(int step) {
  char name[32];
  snprintf(name, sizeof name, "read.%d", step);
  int fd = open(name, O_WRONLY | O_CREAT, 0600);
  CHECK(fd >= 0);
  close(fd);
  for (int tries = 0; access(name, F_OK) == 0; usleep(1000)) CHECK(++tries < 20000);
}

static bool has_pins(void) {
  char text[8192];
  int fd = open("/proc/self/status", O_RDONLY);
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  CHECK(size > 0);
  text[size] = 0;
  const char* line = strstr(text, "\nVmPin:");
  return line != NULL && strtoull(line + 7, NULL, 10) != 0;
}

static void do_step(int step) {
  ask(step);
  for (int tries = 0; g_once && has_pins(); usleep(1000))
    CHECK(++tries < 20000);  // the kernel lets go of a ring in its own time
}

static void check_content(int step) {
  for (int i = 0; i < kSize; ++i) CHECK_EQUAL(g_buffer[i], (unsigned char)(i * 7 + step * 31 + i / 4096));
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_once = argc > 2 && strcmp(argv[2], "once") == 0;
  g_buffer = mmap(NULL, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(g_buffer != MAP_FAILED);
  memset(g_buffer, 1, kSize);
  struct io_uring_params params;
  memset(&params, 0, sizeof params);
  int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
  if (ring < 0) target_skip("io_uring: %s", strerror(errno));
  start_stranger(ring, &params);
  struct iovec range = {g_buffer, kSize};
  if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &range, 1) != 0)
    target_skip("registered buffers: %s", strerror(errno));
  close(ring);
  ask(0);
  check_content(0);
  if (!has_pins()) target_skip("this kernel does not count pinned pages");
  target_ready();
  target_wait(do_step);
  check_content(target_steps());
  target_pass();
}
