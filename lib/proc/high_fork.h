// A process that stays when ckpt has ended (a keeper), under a number that no restore is likely to need.
#pragma once

#include <sys/types.h>

namespace ckpt::proc {

/// As fork(2), with a free number from the top of the pid range, downwards: the kernel gives out the next one upwards, which may
/// be that of a process that was dumped and has ended. Choosing needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; without them, and
/// where nothing is free up there, the kernel chooses. The number is that in the own pid namespace. For callers with one thread:
/// locks of the C library that another one holds would stay held in the child.
pid_t high_fork();

}  // namespace ckpt::proc
