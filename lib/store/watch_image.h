// Watches on files (inotify, fanotify) and on processes (pidfd) in an image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

struct InotifyWatch {
  int wd = 0;  ///< the number the program knows it by
  uint32_t mask = 0;
  std::string path;
  uint64_t device = 0, inode = 0;
  bool operator==(const InotifyWatch&) const = default;
};

struct Inotify {
  std::vector<InotifyWatch> watches;  ///< by wd
  /// Events wait that the program has not read. Nothing can look at them or make them again: it is told IN_Q_OVERFLOW
  /// instead, which means just that.
  bool overflow = false;
  bool operator==(const Inotify&) const = default;
};

enum class FanotifyScope { kInode, kMount, kFilesystem };

struct FanotifyMark {
  FanotifyScope scope = FanotifyScope::kInode;
  uint32_t flags = 0;  ///< FAN_MARK_* that fdinfo shows: IGNORED_SURV_MODIFY, EVICTABLE, IGNORE
  uint64_t mask = 0, ignored_mask = 0;
  std::string path;  ///< kMount, kFilesystem: a mount point
  uint64_t device = 0, inode = 0;
  bool operator==(const FanotifyMark&) const = default;
};

struct Fanotify {
  uint32_t flags = 0, event_flags = 0;  ///< of fanotify_init
  std::vector<FanotifyMark> marks;
  bool operator==(const Fanotify&) const = default;
};

/// A pidfd. Its flags (O_NONBLOCK; O_EXCL: of a thread) are those of the descriptor.
struct ProcessHandle {
  int pid = -1;  ///< -1: a process that has ended and been waited for
  bool operator==(const ProcessHandle&) const = default;
};

}  // namespace ckpt::store
