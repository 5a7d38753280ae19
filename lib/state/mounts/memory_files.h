// The files of a file system in memory.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/mounts/record.h"

namespace ckpt::capture {

struct MemoryFiles {
  std::vector<store::MemoryFile> files;
  std::vector<UniqueFd> bytes;  ///< parallel to those that have_bytes, where they are asked for
};

/// All of what `root`, a mount of nothing else, shows. What goes away meanwhile is left out. kUnsupported: what does
/// not go with an image; kNoRoom.
Result<MemoryFiles> read_memory_files(int root, bool with_bytes);

}  // namespace ckpt::capture
