// How inotify and fanotify groups are shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/state/watches/record.h"

namespace ckpt::state {

inline std::string show(const store::Inotify& group) { return fmt::format("{} watched", group.watches.size()); }
inline std::string show(const store::Fanotify& group) { return fmt::format("{} marks", group.marks.size()); }

}  // namespace ckpt::state
