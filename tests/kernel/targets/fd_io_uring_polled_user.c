// A ring that a thread of the kernel polls, made by a process with users and groups of its own: what is made through
// it is theirs.
#include <grp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "../uring.h"

enum { kUser = 12345, kGroup = 23456 };

static struct uring g_ring;

static void make_file_by_ring(void) {
  static uint64_t data;
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_OPENAT, ++data);
  sqe->fd = AT_FDCWD;
  sqe->addr = (uintptr_t) "made";
  sqe->open_flags = O_RDWR | O_CREAT | O_EXCL;
  sqe->len = 0600;
  __atomic_store_n(uring_sq(&g_ring, g_ring.p.sq_off.tail), g_ring.sq_tail, __ATOMIC_SEQ_CST);
  struct io_uring_cqe cqe;
  const unsigned flags = IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS;
  while (!uring_take(&g_ring, &cqe)) {
    CHECK(syscall(SYS_io_uring_enter, g_ring.fd, 1, 1, flags, NULL, 0) >= 0 || errno == EINTR);
  }
  CHECK_EQUAL(cqe.user_data, data);
  CHECK(cqe.res >= 0);
  struct stat st;
  CHECK_EQUAL(fstat(cqe.res, &st), 0);
  CHECK_EQUAL(st.st_uid, kUser);
  CHECK_EQUAL(st.st_gid, kGroup);
  CHECK_EQUAL(close(cqe.res), 0);
  CHECK_EQUAL(unlink("made"), 0);
}

static void step(int number) {
  (void)number;
  make_file_by_ring();
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (geteuid() != 0) target_skip("users of others need root");
  // The capabilities stay: the target writes files that are root's.
  CHECK_EQUAL(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0), 0);
  const gid_t groups[2] = {kGroup + 1, kGroup + 2};
  CHECK_EQUAL(setgroups(2, groups), 0);
  CHECK_EQUAL(setresgid(kGroup, kGroup, kGroup), 0);
  CHECK_EQUAL(setresuid(kUser, kUser, kUser), 0);
  if (!uring_make(&g_ring, 4, IORING_SETUP_SQPOLL, false)) target_skip("io_uring: %s", strerror(errno));
  make_file_by_ring();

  target_ready();
  target_wait(step);

  make_file_by_ring();
  target_pass();
}
