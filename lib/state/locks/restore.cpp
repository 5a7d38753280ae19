#include "lib/state/locks/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "lib/base/io.h"
#include "lib/state/tree/child.h"

namespace ckpt::restore {

namespace {

using store::FileLock;
using store::LockKind;

struct flock range_of(const FileLock& lock) {
  struct flock out {};
  out.l_type = lock.write ? F_WRLCK : F_RDLCK;
  out.l_whence = SEEK_SET;
  out.l_start = lock.start;
  out.l_len = lock.last < 0 ? 0 : lock.last - lock.start + 1;
  return out;
}

/// Whoever holds a conflicting lock; only POSIX locks have an owner with a number.
std::string holder(int fd, const FileLock& lock) {
  struct flock range = range_of(lock);
  if (::fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK || range.l_pid <= 0) return "somebody else";
  std::string name = holder_of(range.l_pid);
  return name.empty() ? fmt::format("process {}", range.l_pid) : name;
}

/// By /proc/locks, which names the file: asking flock itself would take the lock for a moment.
bool is_flocked(int fd, bool write) {
  struct stat st{};
  auto list = io::read_file("/proc/locks", 64 << 20);
  if (!list || ::fstat(fd, &st) != 0) return false;
  const std::string file = fmt::format("{:02x}:{:02x}:{}", major(st.st_dev), minor(st.st_dev), st.st_ino);
  std::istringstream lines(*list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, mode, pid, where;
    if (words >> number >> kind >> advisory >> mode >> pid >> where && kind == "FLOCK" && where == file &&
        (write || mode == "WRITE"))
      return true;
  }
  return false;
}

/// EAGAIN in errno.
bool is_held(int fd, const FileLock& lock) {
  errno = EAGAIN;
  if (lock.kind == LockKind::kFlock) return is_flocked(fd, lock.write);
  struct flock range = range_of(lock);
  return ::fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

bool is_taken(int fd, const FileLock& lock) {
  if (lock.kind == LockKind::kFlock) return ::flock(fd, (lock.write ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0;
  struct flock range = range_of(lock);
  if (lock.kind == LockKind::kOfd) return ::fcntl(fd, F_OFD_SETLK, &range) != 0;
  if (::fcntl(fd, F_OFD_GETLK, &range) != 0) return true;
  return errno = EAGAIN, range.l_type != F_UNLCK;
}

}  // namespace

void take_locks(int fd, const std::vector<FileLock>& locks, const std::string& subject, Reasons& reasons,
                LockTaking how) {
  for (const FileLock& lock : locks) {
    if (lock.kind == LockKind::kLease) continue;  // take_leases
    if (how == LockTaking::kOnlyLook ? !is_held(fd, lock) : !is_taken(fd, lock)) continue;
    if (errno != EAGAIN && errno != EACCES) {
      reasons.add(sys_error(subject, "cannot be locked again"));
      continue;
    }
    reasons.add(Code::kBusy, fmt::format("{}: its lock is held by {} now", subject,
                                         lock.kind == LockKind::kFlock ? "somebody else" : holder(fd, lock)));
  }
}

void take_posix_locks(int fd, const std::vector<FileLock>& locks, RestorerArea& area, SyscallBatch& batch) {
  for (const FileLock& lock : locks) {
    if (lock.kind == LockKind::kPosix) batch.add("lock a file", SYS_fcntl, fd, F_SETLK, area.put(range_of(lock)));
  }
}

void take_leases(int fd, const std::vector<FileLock>& locks, SyscallBatch& batch) {
  constexpr int kSetLease = 1024;
  for (const FileLock& lock : locks) {
    if (lock.kind != LockKind::kLease) continue;
    batch.add("take a lease again (somebody else may have the file open now)", SYS_fcntl, fd, kSetLease,
              lock.write ? F_WRLCK : F_RDLCK);
  }
}

}  // namespace ckpt::restore
