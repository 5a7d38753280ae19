// How long what is written to a file will stay (F_SET_RW_HINT): the kernel keeps it with the inode, and no file system
// does. So it is carried of what a restore makes anew.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string>

#include "lib/base/result.h"

namespace ckpt::state {

inline constexpr uint64_t kMostWriteHint = 5;  ///< RWH_WRITE_LIFE_EXTREME; 0: not set

inline uint64_t write_hint_of(int fd) {
  uint64_t hint = 0;
  return ::fcntl(fd, F_GET_RW_HINT, &hint) == 0 && hint <= kMostWriteHint ? hint : 0;
}

/// Of what is new, and has none.
inline Result<void> set_write_hint(int fd, uint64_t hint, const std::string& subject) {
  if (hint != 0 && ::fcntl(fd, F_SET_RW_HINT, &hint) != 0)
    return sys_error(subject, "cannot be told how long what is written to it will stay");
  return {};
}

}  // namespace ckpt::state
