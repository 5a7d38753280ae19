#include <fmt/format.h>

#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::state {

std::string show(const store::Signalfd& signalfd) { return fmt::format("signals {:#x}", signalfd.mask); }

}  // namespace ckpt::state
