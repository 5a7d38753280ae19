#include "lib/proc/stopped_thread.h"

#include <sys/syscall.h>

#include <cerrno>
#include <csignal>

#include "lib/proc/procfs.h"
#include "lib/proc/ptrace.h"
#include "lib/proc/rseq.h"

namespace ckpt::proc {

namespace {

/// Calls that fail with EINTR after a mere stop, without any handler having run (signal(7), "Interruption of system
/// calls and library functions by stop signals"), and the newer ones of their families. Those of sockets do so where a
/// timeout was set (SO_RCVTIMEO, SO_SNDTIMEO), and have moved nothing then.
bool breaks_off_on_stop(uint64_t number) {
  switch (number) {
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_pwait2: case SYS_semop: case SYS_semtimedop:
    case SYS_rt_sigtimedwait: case SYS_io_getevents: case SYS_io_pgetevents: case SYS_io_uring_enter:
    case SYS_read:
    case SYS_readv:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_write:
    case SYS_writev:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_connect:
      return true;
    default: return false;
  }
}

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

/// Signals that the process ignores, be it by default: nothing of it is woken by them unless it is traced.
uint64_t ignored_by(const Status& status) {
  constexpr uint64_t kByDefault = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);
  return status.ignored | (kByDefault & ~status.caught);
}

/// Whether a waiting signal will break the call off anyway. Those sent to the whole process go to its first thread
/// unless that blocks them.
Result<bool> will_be_interrupted(int pid, int tid) {
  CKPT_TRY_ASSIGN(const Status status, read_status(pid, tid));
  const uint64_t passes = ~status.blocked & ~ignored_by(status);
  if ((status.pending_private & passes) != 0) return true;
  const uint64_t shared = status.pending_shared & passes;
  if (tid == pid || shared == 0) return shared != 0;
  CKPT_TRY_ASSIGN(const Status first, read_status(pid, pid));
  return (shared & first.blocked) != 0;
}

Result<bool> mend_broken_call(int pid, int tid, user_regs_struct& regs) {
  if (static_cast<long>(regs.rax) != -EINTR || !breaks_off_on_stop(regs.orig_rax)) return false;
  CKPT_TRY_ASSIGN(const bool interrupted, will_be_interrupted(pid, tid));
  if (interrupted) return false;
  regs.rax = regs.orig_rax;
  regs.rip -= 2;
  regs.orig_rax = ~0ull;
  return true;
}

Result<bool> leave_sequence(int pid, int tid, user_regs_struct& regs) {
  if (static_cast<long>(regs.orig_rax) >= 0) return false;  // no sequence makes a system call
  CKPT_TRY_ASSIGN(RseqConfiguration rseq, get_rseq(tid));
  auto address = resumption_address(pid, rseq.address, regs.rip);
  // An area or a sequence that cannot be read is the program's own fault, for which the kernel will end it.
  if (!address || *address == regs.rip) return false;
  regs.rip = *address;
  return true;
}

}  // namespace

Result<void> settle_stopped_thread(int pid, int tid) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, get_registers(tid));
  CKPT_TRY_ASSIGN(const bool broken, mend_broken_call(pid, tid, regs));
  CKPT_TRY_ASSIGN(const bool left, leave_sequence(pid, tid, regs));
  if (!broken && !left) return {};
  return set_registers(tid, regs);
}

Result<void> settle_before_signal(int pid, int tid, int signal) {
  CKPT_TRY_ASSIGN(const Status status, read_status(pid, tid));
  return signal < SIGRTMIN && (ignored_by(status) & bit(signal)) != 0 ? settle_stopped_thread(pid, tid)
                                                                      : Result<void>();
}

}  // namespace ckpt::proc
