// How a scratch mapping (borrowed_thread.h) is known in a process that ckpt did not leave in order.
#pragma once

#include <cstdint>

#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// What a snapshot exits with that ckpt was killed before it held it: it runs, and its first instructions end it. Only
/// its parent sees that.
inline constexpr uint8_t kUnheldSnapshotExit = 158;

/// Where a scratch mapping is asked for ("ckpt" in letters): where the kernel hardly places any of a program's, so that
/// one is known even when ckpt was killed before its code was there. The kernel chooses another place where this one is
/// taken.
inline constexpr uint64_t kScratchAddress = 0x636b'7074'0000;

/// Whether ckpt's code lies at `at`.
bool is_scratch(int pid, RemoteAddress at);
}  // namespace ckpt::proc
