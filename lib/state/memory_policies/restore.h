// NUMA memory policies, set by the process itself.
#pragma once

#include <cstdint>

#include "lib/state/memory_policies/record.h"
#include "lib/state/reasons.h"
#include "lib/state/tree/syscall_batch.h"

namespace ckpt::restore {

/// A policy for nodes of which this machine has none is a reason against (kUnsupported). `subject`: the thread or
/// mapping.
void check_policy(const store::MemoryPolicy& policy, const std::string& subject, Reasons& reasons);

/// Before the mapping is filled, which is when its memory is placed.
void set_mapping_policy(const store::MemoryPolicy& policy, uint64_t start, uint64_t end, RestorerArea& area,
                        SyscallBatch& batch);
/// In the thread itself, after memory is filled and its own batches have nothing left to allocate.
void set_thread_policy(const store::MemoryPolicy& policy, RestorerArea& area, SyscallBatch& batch);

}  // namespace ckpt::restore
