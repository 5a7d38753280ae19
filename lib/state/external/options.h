// What becomes of terminals and pipes from outside the tree, which are no state of its own.
#pragma once

#include <map>
#include <string>

namespace ckpt::state {

enum class ExternalPipes {
  kFail,   ///< they stand in the way; of a restore: as the dump had it
  kKeep,   ///< ckpt's own descriptors of the same numbers take their place
  kNull,   ///< /dev/null takes their place
  kEnded,  ///< of a restore: pipes whose other end is closed take their place, but for those that became /dev/null
};

struct ExternalOptions {
  bool terminals = false;  ///< ckpt's own descriptors of the same numbers take their place
  ExternalPipes pipes = ExternalPipes::kFail;
  std::map<std::string, int> given;  ///< of a restore: ckpt's descriptor for "pipe:[4711]", whatever else is said
};

}  // namespace ckpt::state
