// File locks and leases: what the manifest says of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace ckpt::store {

enum class LockKind {
  kFlock,  ///< flock(2): of the open file description
  kPosix,  ///< fcntl F_SETLK: of the process
  kOfd,    ///< fcntl F_OFD_SETLK: of the open file description
  kLease,  ///< fcntl F_SETLEASE: of the open file description, on the whole file
};

struct FileLock {
  LockKind kind = LockKind::kFlock;
  bool write = false;  ///< exclusive
  int64_t start = 0;
  int64_t last = -1;  ///< the last byte; -1: to the end of the file, however it grows
  bool operator==(const FileLock&) const = default;
};

/// A POSIX lock, which belongs to the process.
struct ProcessLock {
  int fd = 0;  ///< a descriptor of the file
  FileLock lock;
  bool operator==(const ProcessLock&) const = default;
};

inline constexpr std::array<const char*, 4> kLockNames = {"flock", "posix", "ofd", "lease"};

template <class A>
void describe(A& a, typename A::template Of<FileLock> l) {
  a.choice("kind", l.kind, kLockNames);
  a.flag("write", l.write);
  a.number("start", l.start, 0);
  a.number("last", l.last, -1, std::numeric_limits<int64_t>::max() - 1);
}

template <class A>
void describe(A& a, typename A::template Of<ProcessLock> l) {
  a.number("fd", l.fd, 0);
  a.object("lock", l.lock);
}

}  // namespace ckpt::store
