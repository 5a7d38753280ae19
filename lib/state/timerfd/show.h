// How a timerfd is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/base/text.h"
#include "lib/state/timerfd/record.h"

namespace ckpt::state {

inline std::string show(const store::Timerfd& timerfd) {
  return fmt::format("{} left", human_us(timerfd.value_ns / 1000));
}

}  // namespace ckpt::state
