// The signals that ckpt handles, and what it was started with for them.
#pragma once

#include "lib/base/cancel.h"

namespace ckpt::cli {

/// Once, before any other thread. SIGINT, SIGTERM and SIGHUP ask `cancel`, which is borrowed for good, for an orderly
/// end, SIGUSR1 for a line of progress; those that the caller ignores stay ignored.
void take_signals(Cancel& cancel);
/// SIGTERM asks for an end whatever the caller thinks of it: for a worker that the ckpt that was started sends it to.
void obey_sigterm();
/// All as they were when ckpt was started; right before an exec.
void restore_signals();

}  // namespace ckpt::cli
