// seccomp of a traced thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

/// PTRACE_O_SUSPEND_SECCOMP, for `seize` and `set_options`: while the tracer is there, no filter judges the thread's
/// calls. Needs CAP_SYS_ADMIN, a tracer without seccomp, and CONFIG_CHECKPOINT_RESTORE; EPERM or EINVAL otherwise.
/// Without it a borrowed call may be refused, or kill the target. `set_options` replaces all options: pass it every
/// time.
inline constexpr unsigned long kSuspendSeccomp = 1ul << 21;
/// kSuspendSeccomp where this ckpt may use it, else 0. FrozenProcess and BorrowedThread pass it already.
unsigned long suspend_seccomp_option();

struct SeccompState {
  int mode = 0;             ///< SECCOMP_MODE_*
  bool speculation = true;  ///< false: "force mitigated"
};
/// From /proc/PID/task/TID/status, of any thread at any time.
Result<SeccompState> read_seccomp_state(int pid, int tid);

struct SeccompProgram {
  std::vector<uint8_t> instructions;  ///< struct sock_filter
  bool log = false;
};
/// The filter number `index` of a stopped thread, 0 the oldest; nothing past the last. Needs CAP_SYS_ADMIN.
Result<std::optional<SeccompProgram>> read_seccomp_filter(int tid, uint64_t index);

}  // namespace ckpt::proc
