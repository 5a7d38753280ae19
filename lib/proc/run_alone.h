// One stopped thread runs while everything else of its process is frozen.
#pragma once

#include <functional>

#include "lib/base/result.h"

namespace ckpt::proc {

/// Lets thread `tid` of `pid`, which the calling thread holds in a ptrace stop, run while `work` is done by a thread of
/// ckpt's own; then stops it again. No signal reaches it meanwhile. What `work` returns is the result; kNotFound: the
/// thread has ended. Seccomp filters that the attachment suspended are in force while it runs.
Result<void> run_alone(int pid, int tid, const std::function<Result<void>()>& work);

}  // namespace ckpt::proc
