// System V shared memory, semaphores and message queues of a tree, in the IPC namespace that ckpt is in.
#pragma once

#include <set>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/system_v_ipc/record.h"

namespace ckpt::capture {

/// The objects of the processes `pids` (sorted). A segment belongs to the tree when it is attached there (`attached`:
/// the inode numbers of its mappings "/SYSV........", which are ids) or was made there; a semaphore set when one of the
/// processes was the last to use one of its semaphores, or has adjustments of it (`adjusted`: ids); a queue when one
/// was the last to send or receive. Nothing else connects an object and a process: what nobody of the tree has touched
/// is left as it is, and stays where it is when the tree ends. Nothing is changed; messages are copied in place. While
/// the tree is frozen.
Result<store::SystemVIpc> describe_ipc(const std::vector<int>& pids, const std::set<int>& attached,
                                       const std::set<int>& adjusted = {});

/// All objects of the IPC namespace that this process is in.
Result<size_t> count_ipc();

/// Whether the thread may have semaphore adjustments (SEM_UNDO): it has a list of them, which may be empty, and there
/// are semaphores.
Result<bool> may_have_undo(int tid);
/// Whether two threads have one list of adjustments, or none both.
Result<bool> have_same_undo(int left, int right);

/// The bytes of an attached segment, to be read with pread: through /proc/PID/map_files, so that neither the time nor
/// the process of its last attachment changes. [start, end) is the mapping as /proc/PID/maps has it.
Result<UniqueFd> open_segment(int pid, uint64_t start, uint64_t end);

/// For a segment that nobody has attached, read-only. It notes time and process of that.
Result<UniqueFd> copy_segment(const store::SharedSegment& segment);

}  // namespace ckpt::capture
