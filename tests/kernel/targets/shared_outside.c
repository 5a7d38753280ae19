// Something that a process has in common with its child, by argv[2]: the runner dumps the child alone.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "target.h"

static int new_memfd(size_t size) {
  int fd = memfd_create("ckpt-outside", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  return fd;
}

static char* map_shared(int fd, int flags) {
  char* out = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
  CHECK(out != MAP_FAILED);
  return out;
}

static void hold_anonymous(void) { map_shared(-1, MAP_ANONYMOUS)[0] = 1; }
static void hold_memfd(void) { new_memfd(PAGE_SIZE); }
static void hold_mapped_memfd(void) {
  int fd = new_memfd(PAGE_SIZE);
  map_shared(fd, 0)[0] = 1;
  CHECK_EQUAL(close(fd), 0);
}
/// It is the same in every copy.
static void hold_sealed_memfd(void) {
  int fd = new_memfd(PAGE_SIZE);
  CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), 0);
}
static void hold_deleted(void) {
  char name[64];
  target_shm_name(name, sizeof name, "outside");
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)PAGE_SIZE) == 0);
  map_shared(fd, 0)[0] = 1;
  CHECK(close(fd) == 0 && shm_unlink(name) == 0);
}
static void hold_eventfd(void) {
  for (int i = 0; i < 5; ++i) CHECK(eventfd(0, 0) >= 0);
}
static void hold_timerfd(void) { CHECK(timerfd_create(CLOCK_MONOTONIC, 0) >= 0); }
static void hold_epoll(void) { CHECK(epoll_create1(0) >= 0); }
static void hold_nothing(void) {}

static const struct {
  const char* name;
  void (*hold)(void);
} kKinds[] = {
    {"anonymous", hold_anonymous}, {"memfd", hold_memfd},     {"mapped_memfd", hold_mapped_memfd},
    {"deleted", hold_deleted},     {"eventfd", hold_eventfd}, {"timerfd", hold_timerfd},
    {"epoll", hold_epoll},         {"sealed_memfd", hold_sealed_memfd}, {"nothing", hold_nothing},
};

static int child(void* unused) {
  (void)unused;
  hold_eventfd();  // its own, among which the common one is to be found
  child_wait(1);
  return 0;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (size_t i = 0; i < sizeof kKinds / sizeof *kKinds; ++i) {
    if (argc < 3 || strcmp(argv[2], kKinds[i].name) == 0) kKinds[i].hold();
  }
  pid_t pid = start_child(child, NULL);
  FILE* file = fopen("child", "w");
  CHECK(file != NULL && fprintf(file, "%d\n", pid) > 0 && fclose(file) == 0);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(pid, 0);
  target_pass();
}
