#include "lib/proc/stopped_thread.h"

#include <sys/syscall.h>

#include <cerrno>

#include "lib/proc/procfs.h"
#include "lib/proc/ptrace.h"
#include "lib/proc/rseq.h"

namespace ckpt::proc {

namespace {

/// Calls that fail with EINTR after a mere stop, without any handler having run (signal(7), "Interruption of system calls
/// and library functions by stop signals"), and the newer ones of their families. Those of sockets do so where a timeout was
/// set (SO_RCVTIMEO, SO_SNDTIMEO), and have moved nothing then.
bool breaks_off_on_stop(uint64_t number) {
  switch (number) {
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_pwait2: case SYS_semop: case SYS_semtimedop:
    case SYS_rt_sigtimedwait: case SYS_io_getevents: case SYS_io_pgetevents:
    case SYS_read: case SYS_readv: case SYS_recvfrom: case SYS_recvmsg: case SYS_recvmmsg: case SYS_accept: case SYS_accept4:
    case SYS_write: case SYS_writev: case SYS_sendto: case SYS_sendmsg: case SYS_sendmmsg: case SYS_connect: return true;
    default: return false;
  }
}

Result<bool> mend_broken_call(int pid, int tid, user_regs_struct& regs) {
  if (static_cast<long>(regs.rax) != -EINTR || !breaks_off_on_stop(regs.orig_rax)) return false;
  CKPT_TRY_ASSIGN(Status status, read_status(pid, tid));
  if (((status.pending_private | status.pending_shared) & ~status.blocked) != 0) return false;
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

}  // namespace ckpt::proc
