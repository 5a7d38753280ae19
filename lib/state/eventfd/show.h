// How an eventfd is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/state/eventfd/record.h"

namespace ckpt::state {

inline std::string show(const store::Eventfd& eventfd) {
  return fmt::format("count {}", eventfd.count);
}

}  // namespace ckpt::state
