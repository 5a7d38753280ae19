// Handlers, queued signals and timers.
#pragma once

#include "lib/base/progress.h"
#include "lib/rebuild/child.h"
#include "lib/rebuild/reasons.h"
#include "lib/rebuild/threads.h"
#include "lib/store/process_image.h"

namespace ckpt::rebuild {

/// A timer whose id this kernel could not give back.
void check_timers(const store::ProcessImage& image, Reasons& reasons);

/// Every action, those left at their default included. SIGTRAP's is set by `finish_trap_signal`: scripts end with that
/// signal.
void set_actions(const store::ProcessImage& image, Scratch& scratch, Script& script);

/// A SIGSTOP was waiting for the process, or for a thread of it.
bool has_waiting_stop(const store::ProcessImage& image);

/// Signals that wait for the process or a thread; all are blocked until the end. Each thread queues its own: the kernel
/// lets nobody else claim to be the kernel. After `set_actions`.
void queue_signals(const store::ProcessImage& image, Scratch& scratch, ThreadScripts& scripts);

/// setitimer and timer_create, armed with the time left. As late as possible.
void set_timers(const store::ProcessImage& image, Scratch& scratch, Script& script);

/// SIGTRAP's action and those that are queued, by calls that need no signal themselves. No script can run afterwards.
Result<void> finish_trap_signal(const store::ProcessImage& image, Child& child);

}  // namespace ckpt::rebuild
