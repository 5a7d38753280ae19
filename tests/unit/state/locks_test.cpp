// Locks taken here, read from /proc/self/fdinfo, given up, and taken again.
#include "lib/state/locks/capture.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "lib/base/io.h"
#include "lib/state/locks/restore.h"
#include "lib/state/tree/child.h"
#include "tests/support/free_pid.h"
#include "tests/support/skip.h"

using namespace ckpt;
using store::FileLock;
using store::LockKind;

namespace {

struct File {
  File() {
    path = (std::filesystem::temp_directory_path() / "ckpt-locks-XXXXXX").string();
    fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
    REQUIRE(fd);
  }
  ~File() { ::unlink(path.c_str()); }
  UniqueFd again() const { return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)); }
  std::string path;
  UniqueFd fd;
};

std::vector<FileLock> locks_of(int fd, int pid = ::getpid()) {
  auto text = io::read_file(fmt::format("/proc/{}/fdinfo/{}", pid, fd), 1 << 20);
  REQUIRE(text);
  auto locks = capture::parse_locks(*text);
  REQUIRE_MESSAGE(locks, locks.error().text());
  return *locks;
}

int lock(int fd, int command, short type, off_t start, off_t length) {
  struct flock range {};
  range.l_type = type, range.l_whence = SEEK_SET, range.l_start = start, range.l_len = length;
  return ::fcntl(fd, command, &range);
}

}  // namespace

TEST_CASE("locks: all three kinds are read, and taken again on another description") {
  File file;
  UniqueFd other = file.again();
  REQUIRE(::flock(file.fd.get(), LOCK_SH) == 0);
  REQUIRE(lock(file.fd.get(), F_SETLK, F_WRLCK, 10, 20) == 0);
  REQUIRE(lock(other.get(), F_OFD_SETLK, F_RDLCK, 100, 0) == 0);
  auto first = locks_of(file.fd.get()), second = locks_of(other.get());
  CHECK(first == std::vector<FileLock>{{LockKind::kFlock, false, 0, -1}, {LockKind::kPosix, true, 10, 29}});
  CHECK(second == std::vector<FileLock>{{LockKind::kOfd, false, 100, -1}});
  file.fd = file.again();  // which gives up the POSIX lock
  other = file.again();
  CHECK(locks_of(file.fd.get()).empty());
  restore::Reasons reasons;
  restore::take_locks(file.fd.get(), first, file.path, reasons);
  restore::take_locks(other.get(), second, file.path, reasons);
  REQUIRE(reasons.verdict(""));
  CHECK(locks_of(file.fd.get()) == std::vector<FileLock>{first[0]});
  CHECK(locks_of(other.get()) == second);
  UniqueFd third = file.again();
  CHECK(::flock(third.get(), LOCK_EX | LOCK_NB) == -1);
  CHECK(::flock(third.get(), LOCK_SH | LOCK_NB) == 0);
  CHECK(lock(third.get(), F_OFD_SETLK, F_WRLCK, 5000, 1) == -1);
}

TEST_CASE("locks: a process takes its own POSIX locks") {
  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  File file;
  std::vector<FileLock> wanted = {
      {LockKind::kPosix, true, 0, 0}, {LockKind::kPosix, false, 7, -1}, {LockKind::kFlock, true, 0, -1}};
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  restore::SyscallBatch batch;
  restore::take_posix_locks(file.fd.get(), wanted, child->area(), batch);
  CHECK(batch.size() == 2);
  REQUIRE(child->run(batch));
  CHECK(locks_of(file.fd.get(), child->pid()) == std::vector<FileLock>{wanted[0], wanted[1]});
  CHECK(locks_of(file.fd.get()).empty());

  restore::Reasons reasons;
  UniqueFd other = file.again();
  restore::take_locks(other.get(), {wanted[0]}, file.path, reasons);
  auto verdict = reasons.verdict("");
  REQUIRE_FALSE(verdict);
  CHECK(verdict.error().code == Code::kBusy);
  CHECK(verdict.error().message.find(std::to_string(child->pid())) != std::string::npos);
}

TEST_CASE("locks: one that somebody else holds is a reason, of every kind") {
  File file;
  UniqueFd other = file.again();
  REQUIRE(::flock(file.fd.get(), LOCK_EX) == 0);
  REQUIRE(lock(file.fd.get(), F_OFD_SETLK, F_WRLCK, 0, 10) == 0);
  for (FileLock wanted : {FileLock{LockKind::kFlock, false, 0, -1}, FileLock{LockKind::kOfd, true, 5, 5},
                          FileLock{LockKind::kPosix, false, 0, 3}}) {
    restore::Reasons reasons;
    restore::take_locks(other.get(), {wanted}, file.path, reasons);
    auto verdict = reasons.verdict("");
    REQUIRE_FALSE(verdict);
    CHECK(verdict.error().code == Code::kBusy);
  }
}

TEST_CASE("locks: leases, and what is refused by name: one that is being broken, text that makes no sense") {
  auto lease = capture::parse_locks("lock:\t1: LEASE  ACTIVE    READ 5283 fe:00:2187289 0 EOF\n");
  REQUIRE(lease);
  CHECK(*lease == std::vector<FileLock>{{LockKind::kLease, false, 0, -1}});
  auto broken = capture::parse_locks("lock:\t1: LEASE  BREAKING  UNLCK 5283 fe:00:2187289 0 EOF\n");
  REQUIRE_FALSE(broken);
  CHECK(broken.error().code == Code::kBusy);
  CHECK(broken.error().message.find("lease") != std::string::npos);
  for (const char* text :
       {"lock:\t", "lock:\t1: POSIX  ADVISORY  WRITE 1 fe:00:1 x EOF", "lock:\t1: WHAT ADVISORY READ 1 a 0 EOF",
        "lock:\t1: POSIX ADVISORY WRITE 1 fe:00:1 10 9", "lock:\t1: POSIX ADVISORY NONE 1 fe:00:1 1 9"})
    CHECK_FALSE(capture::parse_locks(text));
  CHECK(capture::parse_locks("pos:\t0\n")->empty());
}
