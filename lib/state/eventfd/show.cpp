#include <fmt/format.h>

#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::state {

std::string show(const store::Eventfd& eventfd) { return fmt::format("count {}", eventfd.count); }

}  // namespace ckpt::state
