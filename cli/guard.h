// The guard of verbs that hold a live process in their hands: the work is done by a child of the ckpt that was started,
// in a session of its own. A ckpt that is killed, kill -9 included, takes nothing down with it: the worker is told by
// its parent-death signal, lets the target go, removes what it staged, and ends.
#pragma once

#include <functional>

#include "lib/base/cancel.h"

namespace ckpt::cli {

/// Runs `work` in a worker process and returns its exit code. Signals that ask for an end are handed on to the worker.
int run_guarded(const std::function<int()>& work, const Cancel& cancel);

}  // namespace ckpt::cli
