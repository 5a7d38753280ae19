// What becomes of terminals and pipes from outside the tree, which are no state of its own.
#pragma once

namespace ckpt::state {

enum class ExternalPipes {
  kFail,  ///< they stand in the way; of a restore: as the dump had it
  kKeep,  ///< ckpt's own descriptors of the same numbers take their place
  kNull,  ///< /dev/null takes their place
};

struct ExternalOptions {
  bool terminals = false;  ///< ckpt's own descriptors of the same numbers take their place
  ExternalPipes pipes = ExternalPipes::kFail;
};

}  // namespace ckpt::state
