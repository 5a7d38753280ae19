// How shared memory is shown.
#pragma once

#include <string>

#include "lib/state/shared_memory/record.h"

namespace ckpt::state {

inline std::string show(const store::SharedMemory& memory) {
  return memory.name;
}

}  // namespace ckpt::state
