// Landlock domains (landlock(7)): rules that a process made for itself, and that no file of /proc and no system call
// shows.
#pragma once

#include "lib/base/result.h"

namespace ckpt::proc {

/// Whether there can be any: the kernel has the module, and it was not switched off at boot.
bool has_landlock();

/// Enters one, which denies nothing but to execute files: for whoever wants to see what that looks like. Plain system
/// calls only.
bool enter_landlock_domain();

/// Whether any thread of a process is in one, as the kernel's own memory has it. kNotFound: it has ended. kPermission,
/// kUnsupported: see KernelMemory. The first call takes some tens of milliseconds.
Result<bool> is_in_landlock_domain(int pid, int pidfd);

/// So that no later call is the first.
void prepare_landlock_look();

}  // namespace ckpt::proc
