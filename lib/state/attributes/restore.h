// What a process has beside memory, threads and descriptors: bounds, folders, limits, session, and a dozen small
// values.
#pragma once

#include "lib/base/progress.h"
#include "lib/state/files/restore.h"
#include "lib/state/threads/restore.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Folders and umask. `files` is open.
void set_folders(const store::ProcessImage& image, const store::TreeImage& tree, const OpenedFiles& files, Child& child,
                 SyscallBatch& batch);

/// Bounds of memory, the exe link. After the mappings, while the inherited descriptors are open.
void set_bounds(const store::ProcessImage& image, const OpenedFiles& files, Child& child, SyscallBatch& batch);

/// What the process has by itself: whether it is a child subreaper; no parent-death signal for now.
void set_identity(const store::ProcessImage& image, SyscallBatch& batch);

/// What its memory is registered for by membarrier(2).
void register_barriers(const store::ProcessImage& image, SyscallBatch& batch);

/// The user as which its session was begun (audit). Only a process itself may set its own; said where it may not.
Result<void> set_login_uid(const store::ProcessImage& image, Child& child, ProgressSink& progress);

/// As many slots as the table of its futexes had, where that was not what the kernel chooses. Once it has its threads.
Result<void> set_futex_table(const store::ProcessImage& image, Child& child, ProgressSink& progress);

/// Limits, personality and the rest that could hinder the rebuilding itself: after everything but the credentials.
void set_limits(const store::ProcessImage& image, Child& child, SyscallBatch& batch, ProgressSink& progress);

/// Whether any thread of it wants a signal when its parent ends: the kernel sends it to the whole process.
bool hears_of_parents_end(const store::ProcessImage& image);

/// What a change of credentials resets, a batch for each thread. The parent must be the final one.
void set_after_credentials(const store::ProcessImage& image, ThreadBatches& batches);

/// oom_score_adj and coredump_filter, through /proc.
void set_through_proc(const store::ProcessImage& image, ProgressSink& progress);

}  // namespace ckpt::restore
