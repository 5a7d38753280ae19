// File locks and leases taken again.
#pragma once

#include <string>
#include <vector>

#include "lib/state/locks/record.h"
#include "lib/state/reasons.h"
#include "lib/state/tree/syscall_batch.h"

namespace ckpt::restore {

/// In ckpt, on the description that the processes inherit: takes its flock and OFD locks, and asks whether the POSIX
/// ones could be had. One that somebody else holds by now is kBusy, naming the holder where the kernel does. `subject`:
/// the file.
enum class LockTaking { kTake, kOnlyLook };
void take_locks(int fd, const std::vector<store::FileLock>& locks, const std::string& subject, Reasons& reasons,
                LockTaking how = LockTaking::kTake);

/// The POSIX locks of a process on its descriptor `fd`, in the process itself. After its last close of any descriptor
/// of the file, inherited ones included: closing one gives up the process's locks on the file.
void take_posix_locks(int fd, const std::vector<store::FileLock>& locks, RestorerArea& area, SyscallBatch& batch);

/// The leases of a description, in a process that has it as `fd`, which is the number that the process is told when
/// somebody wants the file. Once nothing opens the file any more, since that would break them.
void take_leases(int fd, const std::vector<store::FileLock>& locks, SyscallBatch& batch);

}  // namespace ckpt::restore
