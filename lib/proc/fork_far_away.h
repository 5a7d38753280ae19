// A process that stays when ckpt has ended (a tracking daemon, a lazy-pages daemon), under a number that no restore is
// likely to need.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>

namespace ckpt::proc {

/// As fork(2), with a free number half the pid range away from the last one that the kernel gave out: numbers near that
/// one, which the kernel would give out next, may be those of processes that were dumped and have ended. Choosing needs
/// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; without them, and where nothing is free there, the kernel chooses. The
/// number is that in the own pid namespace. For callers with one thread: locks of the C library that another one holds
/// would stay held in the child. `flags` as clone3(2) takes them.
pid_t fork_far_away(uint64_t flags = 0, int exit_signal = SIGCHLD);

}  // namespace ckpt::proc
