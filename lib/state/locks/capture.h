// File locks and leases, from the "lock:" lines of /proc/PID/fdinfo/FD.
#pragma once

#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/locks/record.h"

namespace ckpt::capture {

/// The locks made through the description behind this descriptor: all but kPosix belong to the description, and every
/// process that shares it shows them; kPosix belong to the process whose fdinfo this is. kBusy: a lease that is being
/// broken; kUnsupported: a delegation.
Result<std::vector<store::FileLock>> parse_locks(std::string_view fdinfo);

}  // namespace ckpt::capture
