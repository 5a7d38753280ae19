// seccomp filters installed again.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/state/seccomp/record.h"
#include "lib/state/tree/syscall_batch.h"

namespace ckpt::restore {

/// A chain that names a filter which is not there, or more threads than the process has.
Result<void> check_seccomp(const store::Seccomp& seccomp, size_t threads);

/// In two steps, once all threads exist and while each still has CAP_SYS_ADMIN: before credentials and no_new_privs.
/// From here on every thread must be traced with proc::kSuspendSeccomp (Child's own options included), or the filters
/// judge the batches that follow.
///
/// First in the leader: the filters that all threads have in common, shared by them as the kernel shares them, so that
/// the program can go on to use SECCOMP_FILTER_FLAG_TSYNC.
void install_common_filters(const store::Seccomp& seccomp, RestorerArea& area, SyscallBatch& leader);
/// Then in every thread (`threads`: one batch each): its other filters, and strict mode.
void install_own_filters(const store::Seccomp& seccomp, RestorerArea& area, std::vector<SyscallBatch>& threads);

}  // namespace ckpt::restore
