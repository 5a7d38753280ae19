#include <fmt/format.h>

#include "lib/base/text.h"
#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::state {

std::string show(const store::Timerfd& timerfd) { return fmt::format("{} left", human_us(timerfd.value_ns / 1000)); }

}  // namespace ckpt::state
