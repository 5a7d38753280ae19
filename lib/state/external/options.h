// What becomes of terminals and pipes from outside the tree, which are no state of its own, and of what it shares with
// processes outside.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lib/base/result.h"

namespace ckpt::state {

enum class ExternalPipes {
  kFail,   ///< they stand in the way; of a restore: as the dump had it
  kKeep,   ///< ckpt's own descriptors of the same numbers take their place
  kNull,   ///< /dev/null takes their place
  kEnded,  ///< of a restore: pipes whose other end is closed take their place, but for those that became /dev/null
};

/// Of a dump: memory, eventfds, timerfds and epoll sets that a process outside the tree has, too.
enum class ExternalMemory {
  kFail,  ///< they stand in the way
  kCopy,  ///< they go with the image, and from the restore on the tree has its own
};

struct ExternalOptions {
  bool terminals = false;  ///< ckpt's own descriptors of the same numbers take their place
  ExternalPipes pipes = ExternalPipes::kFail;
  /// Of a restore: ckpt's descriptor for "pipe:[4711]", whatever else is said.
  std::map<std::string, int> given = {};
  /// Of a dump: terminals whose master is outside go with the image, and whoever restores it gets the new masters.
  bool adopt_terminals = false;
  /// Of a restore: is given the master (borrowed) of each terminal that an image has adopted.
  std::function<Result<void>(int master)> take_master = {};
  ExternalMemory memory = ExternalMemory::kFail;
};

}  // namespace ckpt::state
