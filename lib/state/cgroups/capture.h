// Membership in control groups.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/cgroups/record.h"

namespace ckpt::capture {

/// The text of /proc/PID/cgroup, or of /proc/PID/task/TID/cgroup: in version 1 and in threaded groups of version 2 the
/// threads of a process may be in different ones.
Result<std::vector<store::Cgroup>> parse_cgroups(std::string_view text);
Result<std::vector<store::Cgroup>> read_cgroups(int pid, int tid);

/// The groups that are "/" in the control group namespace of these processes, all of one. A process that has been moved
/// out of it tells nothing. kUnsupported: none of them is within it, in some hierarchy.
Result<std::vector<store::Cgroup>> read_cgroup_roots(const std::vector<int>& pids);
/// What of the path of a group, seen from outside, is "/" for who sees `inside`; nothing: that does not tell.
std::optional<std::string> root_of_cgroup(const std::string& outside, const std::string& inside);

}  // namespace ckpt::capture
