// A ring with registered credentials: those of root, of a user without rights, some that were given back in between.
#include <grp.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../uring.h"

enum { kUser = 12345, kGroup = 23456, kOther = 34567 };

static struct uring g_ring;

static int register_own(void) {
  return (int)syscall(SYS_io_uring_register, g_ring.fd, IORING_REGISTER_PERSONALITY, NULL, 0);
}

/// In a child, which shares the ring.
static int register_as(uid_t user, gid_t group, gid_t other) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (setgroups(1, &other) != 0 || setresgid(group, group, group) != 0 || setresuid(user, user, user) != 0) _exit(0);
    int number = register_own();
    _exit(number > 0 ? number : 0);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static int open_as(int number, const char* name, int flags) {
  static uint64_t data;
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_OPENAT, ++data);
  sqe->fd = AT_FDCWD;
  sqe->addr = (uintptr_t)name;
  sqe->open_flags = (unsigned)flags;
  sqe->len = 0600;
  sqe->personality = (uint16_t)number;
  uring_submit(&g_ring, 1, 1);
  struct io_uring_cqe cqe;
  CHECK(uring_take(&g_ring, &cqe));
  CHECK_EQUAL(cqe.user_data, data);
  if (cqe.res >= 0) CHECK_EQUAL(close(cqe.res), 0);
  return cqe.res;
}

static void check_all(void) {
  CHECK(open_as(0, "roots", O_RDONLY) >= 0);
  CHECK(open_as(1, "roots", O_RDONLY) >= 0);
  CHECK_EQUAL(open_as(2, "roots", O_RDONLY), -EACCES);
  CHECK_EQUAL(open_as(3, "roots", O_RDONLY), -EINVAL);
  CHECK_EQUAL(open_as(4, "roots", O_RDONLY), -EACCES);
  CHECK_EQUAL(open_as(4, "groups", O_RDONLY), -EACCES);
  CHECK(open_as(2, "groups", O_RDONLY) >= 0);
  CHECK(open_as(2, "made", O_RDWR | O_CREAT) >= 0);
  struct stat st;
  CHECK_EQUAL(stat("made", &st), 0);
  CHECK_EQUAL(st.st_uid, kUser);
  CHECK_EQUAL(st.st_gid, kGroup);
  CHECK_EQUAL(unlink("made"), 0);
}

static void step(int number) {
  (void)number;
  check_all();
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (geteuid() != 0) target_skip("credentials of others need root");
  if (!uring_make(&g_ring, 8, 0, false)) target_skip("io_uring: %s", strerror(errno));
  CHECK_EQUAL(chmod(".", 0777), 0);
  int file = open("roots", O_RDWR | O_CREAT, 0600), shared = open("groups", O_RDWR | O_CREAT, 0600);
  CHECK(file >= 0 && shared >= 0);
  CHECK_EQUAL(fchown(shared, 0, kOther), 0);
  CHECK_EQUAL(fchmod(shared, 0640), 0);
  CHECK_EQUAL(close(file), 0);
  CHECK_EQUAL(close(shared), 0);
  CHECK_EQUAL(register_own(), 1);
  CHECK_EQUAL(register_as(kUser, kGroup, kOther), 2);
  CHECK_EQUAL(register_own(), 3);
  CHECK_EQUAL(register_as(kUser + 1, kGroup, kGroup), 4);
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring.fd, IORING_UNREGISTER_PERSONALITY, NULL, 3), 0);
  check_all();

  target_ready();
  target_wait(step);

  check_all();
  CHECK_EQUAL(register_own(), 5);
  target_pass();
}
