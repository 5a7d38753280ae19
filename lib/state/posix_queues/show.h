// How a POSIX message queue is shown.
#pragma once

#include <string>

#include "lib/state/posix_queues/record.h"

namespace ckpt::state {

inline std::string show(const store::PosixQueue& queue) {
  return queue.name;
}

}  // namespace ckpt::state
