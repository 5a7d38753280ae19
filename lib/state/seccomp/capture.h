// seccomp filters of a stopped process.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/state/seccomp/record.h"

namespace ckpt::capture {

/// `tids`: the threads in the order of the image, each stopped by the calling thread where it has seccomp at all.
/// kUnsupported: a filter that asks another process (SECCOMP_RET_USER_NOTIF).
Result<store::Seccomp> describe_seccomp(int pid, const std::vector<int>& tids);

}  // namespace ckpt::capture
