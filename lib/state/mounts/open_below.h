// Names in a mount that others fill.
#pragma once

#include <string>

#include "lib/base/unique_fd.h"

namespace ckpt::state {

/// `path` below the folder `root`, or, empty, that: never through a link (the last one is opened itself with O_PATH),
/// nor another mount, nor upwards. Close-on-exec; empty and errno.
UniqueFd open_below(int root, const std::string& path, int flags);

}  // namespace ckpt::state
