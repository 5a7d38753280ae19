// ptrace, one thread of the target at a time. Everything here must be called from the thread of ckpt that seized it: an
// attachment belongs to a thread, and when that thread ends the kernel lets the target go, running.
//
// A target may die at any moment: every call may give kNotFound ("has ended").
#pragma once

#include <sys/user.h>

#include <array>
#include <cstdint>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

/// An address in a target. Never dereferenced here.
enum class RemoteAddress : uint64_t {};
constexpr uint64_t raw(RemoteAddress a) { return static_cast<uint64_t>(a); }
constexpr RemoteAddress operator+(RemoteAddress a, uint64_t n) { return RemoteAddress(raw(a) + n); }

/// Attaches without stopping. `options`: PTRACE_O_*; TRACESYSGOOD is always added.
Result<void> seize(int tid, unsigned long options = 0);
/// Asks for a stop; it arrives as StopKind::kEvent with event 128 (PTRACE_EVENT_STOP).
Result<void> interrupt(int tid);
/// Lets go. The thread goes on where it is: a group-stop stays in force.
Result<void> detach(int tid, int signal = 0);

enum class StopKind {
  kTrap,       ///< PTRACE_EVENT_STOP after `interrupt`, or the first stop of a new thread
  kGroupStop,  ///< PTRACE_EVENT_STOP of a stopped process
  kSignal,     ///< a signal is about to be delivered
  kSyscall,    ///< entry or exit of a system call (only after Resume::kToSyscall)
  kEvent,      ///< clone, fork, exec, exit: `event`
  kEnded,      ///< exited or was killed: `status` is wait(2)'s
};
struct Stop {
  StopKind kind = StopKind::kEnded;
  int signal = 0;
  int event = 0;
  int status = 0;
};
/// Waits for the next stop of one thread (or child). timeout_us 0: as long as anything can take, ten minutes. kBusy
/// when the time is over.
Result<Stop> wait_stop(int tid, uint64_t timeout_us = 0);

/// More than any call takes that a thread makes for ckpt. One that needs longer has no processor, was frozen by
/// somebody else (a cgroup's freezer), or cannot get memory: it is let go, finishes the call later and restores itself.
inline constexpr uint64_t kCallTimeoutUs = 10'000'000;

enum class Resume { kRun, kToSyscall };
Result<void> resume(int tid, Resume how, int signal = 0);

Result<user_regs_struct> get_registers(int tid);
Result<void> set_registers(int tid, const user_regs_struct& regs);
/// NT_X86_XSTATE: the whole extended state in the standard (not compacted) XSAVE layout. With AMX it is 11,008 bytes.
Result<std::vector<std::byte>> get_xstate(int tid);
Result<void> set_xstate(int tid, const std::vector<std::byte>& area);
Result<uint64_t> get_signal_mask(int tid);
Result<void> set_signal_mask(int tid, uint64_t mask);
/// Queued signals, each a siginfo_t of 128 bytes; `shared`: those of the whole process.
Result<std::vector<std::array<uint8_t, 128>>> peek_signals(int tid, bool shared);
struct RseqConfiguration {
  uint64_t address = 0;
  uint32_t size = 0, signature = 0;
};
/// Address 0: none is registered (or the kernel, before 5.13, cannot say).
Result<RseqConfiguration> get_rseq(int tid);
/// kUnsupported: system calls of the thread end in a signal and not in the kernel: it cannot be borrowed.
Result<void> refuse_dispatched_calls(int tid);
/// kUnsupported: the thread has leave to use I/O ports (ioperm); that of iopl, for all of them, nothing tells.
Result<void> refuse_io_ports(int tid);
Result<void> set_options(int tid, unsigned long options);
/// PTRACE_GETEVENTMSG: the pid of a clone event's child.
Result<unsigned long> event_message(int tid);

/// For what must not be left half done in a thread: what failed for the moment is tried again.
template <class Work>
auto insist(Work work) {
  auto done = work();
  for (int tries = 0; !done && tries < 2; ++tries) done = work();
  return done;
}

}  // namespace ckpt::proc
