// Adjustments of System V semaphores (SEM_UNDO) that the kernel would make at the end of a process.
#pragma once

#include "lib/base/result.h"

namespace ckpt::proc {

/// Whether its first thread has any, in the IPC namespace that ckpt is in. kNotFound: it has ended. kPermission,
/// kUnsupported: see KernelMemory.
Result<bool> has_semaphore_undo(int pid, int pidfd);

}  // namespace ckpt::proc
