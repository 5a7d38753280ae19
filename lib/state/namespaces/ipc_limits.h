// Limits of an IPC namespace: of System V objects, and of POSIX message queues.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/state/network/record.h"

namespace ckpt::state {

/// Of the IPC namespace that this thread is in: those that are not as in a new one. Needs CAP_SYS_ADMIN.
Result<std::vector<store::KernelSetting>> read_ipc_limits();

/// kCorrupt: a file that is none of them.
Result<void> validate_ipc_limits(const std::vector<store::KernelSetting>& limits);
/// Of the namespace that this process is in, but for what `write_late_ipc_limit` writes once all segments are attached.
Result<void> write_ipc_limits(const std::vector<store::KernelSetting>& limits);
Result<void> write_late_ipc_limit();
/// Of the one that this thread is in, which belongs to the tree's user namespace, where it has one, and has no objects.
Result<void> write_all_ipc_limits(const std::vector<store::KernelSetting>& limits);

}  // namespace ckpt::state
