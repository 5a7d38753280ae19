// Holds one thing that an image does not cover yet, named by argv[2], or all of them. It must be refused by name and
// find the process as it was. A control for the runner: "nothing" is not refused.
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "target.h"

static void hold_nothing(void) {}
static void hold_connection(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&address, sizeof address), 0);
  CHECK_EQUAL(listen(fd, 5), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&address, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&address, size), 0);
  CHECK(accept(fd, NULL, NULL) >= 0);
}
static void hold_io_uring(void) {
  struct io_uring_params params;
  memset(&params, 0, sizeof params);
  int fd = (int)syscall(SYS_io_uring_setup, 4, &params);
  if (fd < 0) target_skip("io_uring: %s", strerror(errno));
}
static void hold_aio(void) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 4, &context) != 0) target_skip("aio: %s", strerror(errno));
}
static void hold_hugetlb(void) {
  if (mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0) == MAP_FAILED)
    target_skip("no huge pages are reserved");
}
static void hold_userfaultfd(void) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
  struct uffdio_api api = {.api = UFFD_API};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) target_skip("userfaultfd: %s", strerror(errno));
  struct uffdio_register range = {.range = {(uintptr_t)map_pages(8192), 8192}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  CHECK_EQUAL(ioctl(fd, UFFDIO_REGISTER, &range), 0);
}
static void hold_stranger(void) { CHECK(syscall(SYS_pidfd_open, getppid(), 0) >= 0); }

static const struct Thing {
  const char* name;
  void (*hold)(void);
} kThings[] = {
    {"nothing", hold_nothing}, {"connection", hold_connection}, {"io_uring", hold_io_uring},
    {"aio", hold_aio},         {"hugetlb", hold_hugetlb},
    {"userfaultfd", hold_userfaultfd}, {"stranger", hold_stranger},
};
enum { kCount = sizeof kThings / sizeof kThings[0] };

int main(int argc, char** argv) {
  target_init(argc, argv);
  const char* wanted = argc > 2 ? argv[2] : "nothing";
  bool all = strcmp(wanted, "all") == 0, found = false;
  for (int i = 0; i < kCount; ++i) {
    const char* name = kThings[i].name;
    // Not each of them is there on every machine, so the sum is of those that are always.
    bool always = strcmp(name, "io_uring") != 0 && strcmp(name, "aio") != 0 &&
                  strcmp(name, "hugetlb") != 0 && strcmp(name, "userfaultfd") != 0;
    if (strcmp(wanted, name) != 0 && !(all && always)) continue;
    kThings[i].hold();
    found = true;
  }
  if (!found) target_fail("there is no %s", wanted);
  target_ready();
  target_wait(NULL);
  target_pass();
}
