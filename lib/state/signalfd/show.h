// How a signalfd is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/state/signalfd/record.h"

namespace ckpt::state {

inline std::string show(const store::Signalfd& signalfd) {
  return fmt::format("signals {:#x}", signalfd.mask);
}

}  // namespace ckpt::state
