// File locks in an image.
#pragma once

#include <cstdint>

namespace ckpt::store {

enum class LockKind {
  kFlock,  ///< flock(2): of the open file description
  kPosix,  ///< fcntl F_SETLK: of the process
  kOfd,    ///< fcntl F_OFD_SETLK: of the open file description
};

struct FileLock {
  LockKind kind = LockKind::kFlock;
  bool write = false;  ///< exclusive
  int64_t start = 0;
  int64_t last = -1;  ///< the last byte; -1: to the end of the file, however it grows
  bool operator==(const FileLock&) const = default;
};

}  // namespace ckpt::store
