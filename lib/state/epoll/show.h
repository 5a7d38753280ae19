// How an epoll set is shown.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lib/state/epoll/record.h"

namespace ckpt::state {

inline std::string show(const std::vector<store::EpollEntry>& set) { return fmt::format("{} watched", set.size()); }

}  // namespace ckpt::state
