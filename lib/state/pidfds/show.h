// How a pidfd is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/state/pidfds/record.h"

namespace ckpt::state {

inline std::string show(const store::ProcessHandle& handle) {
  return fmt::format("process {}", handle.pid);
}

}  // namespace ckpt::state
