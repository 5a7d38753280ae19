// Which files the processes below one have written, as the kernel tells it while they run (fanotify): nothing of theirs
// is changed for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::state {

/// Starts the tracker of `root` and of all processes that it will make: a process of its own ("ckpt-track"), nobody's
/// child, which ends with the last of them. Returns once it sees what they do. `unseen` gets file systems on which the
/// kernel tells nothing. kPermission, kUnsupported: the kernel tells it root alone (CAP_SYS_ADMIN, CAP_NET_ADMIN), in
/// the first pid namespace.
Result<void> start_tracker(int root, std::vector<std::string>& unseen);

struct WrittenFile {
  dev_t device = 0;
  ino_t inode = 0;
  std::string path;  ///< its name now; " (deleted)" where it has another one, which is not known
};
struct WrittenFiles {
  std::vector<WrittenFile> files;
  std::vector<std::string> silent;  ///< trackers that say nothing, of nobody above the processes
};
/// What was opened for writing and closed, and is not gone, in the tracked trees that have one of `pids`: none where
/// nothing is tracked. kIo: the tracker of one of them, or of one above them, does not answer, or has missed something.
Result<WrittenFiles> written_files(const std::vector<int>& pids);

}  // namespace ckpt::state
