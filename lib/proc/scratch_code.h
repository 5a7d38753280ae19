// How a scratch mapping (borrowed_thread.h) is known in a process that ckpt did not leave in order.
#pragma once

#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// Whether ckpt's code lies at `at`.
bool is_scratch(int pid, RemoteAddress at);

}  // namespace ckpt::proc
