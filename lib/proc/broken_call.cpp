#include "lib/proc/broken_call.h"

#include <sys/syscall.h>

#include <cerrno>

#include "lib/proc/procfs.h"
#include "lib/proc/ptrace.h"

namespace ckpt::proc {

namespace {

/// Calls that fail with EINTR after a mere stop, without any handler having run (signal(7), "Interruption of system calls
/// and library functions by stop signals"), and the newer ones of their families.
bool breaks_off_on_stop(uint64_t number) {
  switch (number) {
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_pwait2: case SYS_semop: case SYS_semtimedop:
    case SYS_rt_sigtimedwait: case SYS_io_getevents: case SYS_io_pgetevents: return true;
    default: return false;
  }
}

}  // namespace

Result<void> mend_broken_call(int pid, int tid) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, get_registers(tid));
  if (static_cast<long>(regs.rax) != -EINTR || !breaks_off_on_stop(regs.orig_rax)) return {};
  CKPT_TRY_ASSIGN(Status status, read_status(pid, tid));
  if (((status.pending_private | status.pending_shared) & ~status.blocked) != 0) return {};
  regs.rax = regs.orig_rax;
  regs.rip -= 2;
  regs.orig_rax = ~0ull;
  return set_registers(tid, regs);
}

}  // namespace ckpt::proc
