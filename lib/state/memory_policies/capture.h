// NUMA memory policies.
#pragma once

#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/call_batch.h"
#include "lib/state/memory_policies/record.h"

namespace ckpt::capture {

/// Asks for the policy of the thread that makes the calls; what `thread_policy` then finds in the answer.
size_t ask_thread_policy(proc::CallList& calls);
Result<store::MemoryPolicy> thread_policy(const proc::CallList& calls, size_t call);

/// The policy of the borrowed thread.
Result<store::MemoryPolicy> read_thread_policy(proc::BorrowedThread& thread);

/// The mappings with a policy of their own; `leader` is the borrowed leader of process `pid`. By start address: of a
/// mapping that the image has as several, the policy is that of all its parts up to the next line.
Result<std::vector<store::MappingPolicy>> read_mapping_policies(proc::BorrowedThread& leader, int pid);

/// Text of /proc/PID/numa_maps: every mapping that is not shown as "default". One without a policy of its own is shown
/// with the leader's.
Result<std::vector<store::MappingPolicy>> parse_numa_maps(std::string_view text);

}  // namespace ckpt::capture
