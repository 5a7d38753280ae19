// The frame that rt_sigreturn restores a thread from.
#pragma once

#include <sys/user.h>

#include <cstdint>
#include <vector>

#include "lib/base/bytes.h"

namespace ckpt::proc {

/// The registers that the kernel itself would give a stopped thread on resume: a system call interrupted with
/// -ERESTART* is set up to run again (arch_do_signal_or_restart of arch/x86/kernel/signal.c).
user_regs_struct with_restarted_call(user_regs_struct regs);

/// Bytes of a struct rt_sigframe (without its return address) for a place at `address`, a multiple of 64, holding these
/// registers, extended state and signal mask. rt_sigreturn run with rsp == address + 8 makes them the thread's own. The
/// alternate stack stays as it is: the frame carries an invalid one, which the kernel ignores.
std::vector<std::byte> make_signal_frame(uint64_t address, const user_regs_struct& regs,
                                         const std::vector<std::byte>& xstate, uint64_t signal_mask);

}  // namespace ckpt::proc
