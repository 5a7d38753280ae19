// memfds: open and mapped by two processes, mapped alone, open alone, with seals, a name and a size that is kept.
#include <sys/stat.h>
#include <sys/xattr.h>

#include "target.h"

enum { kBytes = 64 << 10, kLasting = 4 };  // RWH_WRITE_LIFE_LONG
static int g_both, g_open, g_sealed;
static char *g_view, *g_hidden;

static void step(int number) { fill_words(g_view + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(500 + number)); }

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK(strcmp(g_hidden, "from the root") == 0);
  strcpy(g_hidden, "from the child");
  CHECK_EQUAL(pwrite(g_both, "through the file", 17, kBytes - 100), 17);
  CHECK_EQUAL(lseek(g_open, 0, SEEK_CUR), 17);
  CHECK_EQUAL(lseek(g_open, 5, SEEK_SET), 5);
  return 1;
}

/// A program in a memfd can be executed as long as nobody has opened it for writing.
static void expect_program(int fd) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char* none[] = {NULL};
    syscall(SYS_execveat, fd, "", none, none, AT_EMPTY_PATH);
    _exit(errno);
  }
  expect_exit(child, 0);
}

static int load_program(void) {
  static char bytes[1 << 20];
  int file = open("/bin/true", O_RDONLY), fd = memfd_create("program", MFD_CLOEXEC);
  ssize_t size = read(file, bytes, sizeof bytes);
  CHECK(size > 0 && write(fd, bytes, (size_t)size) == size && close(file) == 0);
  return fd;
}

static void expect_link(int fd, const char* wanted) {
  char path[64], link[256] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  CHECK(readlink(path, link, sizeof link - 1) > 0);
  if (strcmp(link, wanted) != 0) target_fail("descriptor %d leads to '%s', not to '%s'", fd, link, wanted);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_both = memfd_create("both", MFD_CLOEXEC);
  g_open = memfd_create("a name/with (parts)", 0);
  g_sealed = memfd_create("sealed", MFD_ALLOW_SEALING);
  int hidden = memfd_create("hidden", 0), program = load_program();
  expect_program(program);
  CHECK(g_both >= 0 && g_open >= 0 && g_sealed >= 0 && hidden >= 0);
  CHECK_EQUAL(ftruncate(g_both, kBytes), 0);
  const uint64_t lasting = kLasting;
  CHECK_EQUAL(fcntl(g_open, F_SET_RW_HINT, &lasting), 0);
  const bool has_attributes = fsetxattr(g_open, "user.made-by", "the root", 8, 0) == 0;  // Linux 6.6
  g_view = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, g_both, 0);
  CHECK(g_view != MAP_FAILED);
  fill_words(g_view, kBytes, 4);
  CHECK_EQUAL(write(g_open, "some content here", 17), 17);
  CHECK_EQUAL(ftruncate(g_open, 100000), 0);
  CHECK_EQUAL(fchmod(g_open, 0640), 0);
  CHECK_EQUAL(write(g_sealed, "fixed", 5), 5);
  CHECK_EQUAL(fcntl(g_sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  CHECK_EQUAL(ftruncate(hidden, kBytes), 0);
  g_hidden = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, hidden, 0);
  CHECK(g_hidden != MAP_FAILED && close(hidden) == 0);
  strcpy(g_hidden, "from the root");
  pid_t below = start_child(child, NULL);
  target_ready();
  target_wait(step);

  expect_program(program);
  expect_same_file(g_both, below, g_both, true);
  expect_same_file(g_open, below, g_open, true);
  for (int page = 0; page < kBytes / (int)PAGE_SIZE; ++page)
    for (size_t i = 0; i < PAGE_SIZE / 8; ++i) {
      bool changed = page > 0 && page <= target_steps();
      uint64_t wanted = changed ? mix((uint64_t)(500 + page), i) : mix(4, (size_t)page * PAGE_SIZE / 8 + i);
      CHECK(((uint64_t*)(void*)g_view)[(size_t)page * PAGE_SIZE / 8 + i] == wanted);
    }
  expect_link(g_both, "/memfd:both (deleted)");
  expect_link(g_open, "/memfd:a name/with (parts) (deleted)");
  CHECK_EQUAL(fcntl(g_both, F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(fcntl(g_open, F_GETFD), 0);
  CHECK_EQUAL(fcntl(g_both, F_GET_SEALS), F_SEAL_SEAL);
  CHECK_EQUAL(fcntl(g_sealed, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  uint64_t hint = 0;
  CHECK_EQUAL(fcntl(g_open, F_GET_RW_HINT, &hint), 0);
  CHECK_EQUAL(hint, kLasting);
  CHECK_EQUAL(fcntl(g_both, F_GET_RW_HINT, &hint), 0);
  CHECK_EQUAL(hint, 0);
  char maker[16] = "";
  if (has_attributes) CHECK_EQUAL(fgetxattr(g_open, "user.made-by", maker, sizeof maker - 1), 8);
  if (has_attributes) CHECK(strcmp(maker, "the root") == 0);
  CHECK(ftruncate(g_sealed, 0) == -1 && errno == EPERM);
  CHECK(pwrite(g_sealed, "x", 1, 0) == -1 && errno == EPERM);
  CHECK_EQUAL(fcntl(g_sealed, F_ADD_SEALS, F_SEAL_SEAL), 0);
  char text[32] = "";
  CHECK_EQUAL(pread(g_sealed, text, sizeof text, 0), 5);
  CHECK(strcmp(text, "fixed") == 0);
  struct stat about;
  CHECK_EQUAL(fstat(g_open, &about), 0);
  CHECK_EQUAL(about.st_size, 100000);
  CHECK_EQUAL(about.st_mode & 07777, 0640);
  CHECK_EQUAL(about.st_nlink, 0);
  CHECK_EQUAL(pread(g_open, text, 17, 0), 17);
  CHECK(memcmp(text, "some content here", 17) == 0);
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(lseek(g_open, 0, SEEK_CUR), 5);
  CHECK(strcmp(g_view + kBytes - 100, "through the file") == 0);
  CHECK(strcmp(g_hidden, "from the child") == 0);
  target_pass();
}
