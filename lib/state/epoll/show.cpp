#include <fmt/format.h>

#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::state {

std::string show(const store::Epoll& epoll) { return fmt::format("{} watched", epoll.entries.size()); }

}  // namespace ckpt::state
