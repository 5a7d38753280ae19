// How a scratch mapping (borrowed_thread.h) is known in a process that ckpt did not leave in order.
#pragma once

#include <cstdint>

#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// What a snapshot exits with that ckpt was killed before it held it: it runs, and its first instructions end it. Only its parent
/// sees that.
inline constexpr uint8_t kUnheldSnapshotExit = 158;

/// Whether ckpt's code lies at `at`.
bool is_scratch(int pid, RemoteAddress at);
/// Whether, within a private anonymous mapping that may be read, written and run, there is nothing but zeros in the scratch
/// mapping's size from `at` on: ckpt was killed between the call that made it and the writing of its code. What tells it from a
/// program's own is MAP_NORESERVE, which has no use for so few pages.
bool is_empty_scratch(int pid, RemoteAddress at);

}  // namespace ckpt::proc
