// Membership in control groups.
#pragma once

#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/cgroups/record.h"

namespace ckpt::capture {

/// The text of /proc/PID/cgroup, or of /proc/PID/task/TID/cgroup: in version 1 and in threaded groups of version 2 the
/// threads of a process may be in different ones.
Result<std::vector<store::Cgroup>> parse_cgroups(std::string_view text);
Result<std::vector<store::Cgroup>> read_cgroups(int pid, int tid);

}  // namespace ckpt::capture
