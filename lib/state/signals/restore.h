// Handlers and queued signals.
#pragma once

#include "lib/state/threads/restore.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Every action, those left at their default included. SIGTRAP's is set by `finish_trap_signal`: batches end with that
/// signal.
void set_actions(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch);

/// A SIGSTOP was waiting for the process, or for a thread of it.
bool has_waiting_stop(const store::ProcessImage& image);

/// Signals that wait for the process or a thread; all are blocked until the end. Each thread queues its own: the kernel
/// lets nobody else claim to be the kernel. After `set_actions`.
void queue_signals(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches);

/// SIGTRAP's action and those that are queued, by calls that need no signal themselves. No script can run afterwards.
Result<void> finish_trap_signal(const store::ProcessImage& image, Child& child);

}  // namespace ckpt::restore
