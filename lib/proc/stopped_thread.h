// What the kernel has done, or is about to do, to a thread because it was stopped.
#pragma once

#include "lib/base/result.h"

namespace ckpt::proc {

/// Makes the registers of a thread that has just been stopped, by this thread of ckpt, say all that there is to say of
/// where it goes on, whatever it is made to run meanwhile:
/// - A call that our stop broke off is set up to run again; one that a waiting signal will break off anyway is left
/// alone.
/// - A thread within a restartable sequence goes on at the sequence's abort handler, as the kernel has it do after
/// every
///   preemption. The kernel looks only when the thread is next in user mode: made to run elsewhere first, the thread
///   would come back into a sequence that nobody knows of any more.
Result<void> settle_stopped_thread(int pid, int tid);

/// The same for a thread that stands before the delivery of `signal`, if it would not have been woken for that without
/// a tracer: the process ignores the signal.
Result<void> settle_before_signal(int pid, int tid, int signal);

}  // namespace ckpt::proc
