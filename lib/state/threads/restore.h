// The threads: made with their old ids, given back what each has of its own, put where they were.
#pragma once

#include <vector>

#include "lib/base/progress.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Where its threads go on and what they use at once: stacks, code, thread areas.
void add_hot_addresses(const store::ProcessImage& image, std::vector<uint64_t>& out);

Result<void> create_threads(const store::ProcessImage& image, Child& child);

/// Everything but credentials and queued signals: tid address, robust list, alternate stack, rseq, name, scheduling.
/// Memory must be filled: a thread that was in the middle of an rseq section is moved to its abort handler, as the
/// kernel does with one that was preempted there; `regs` gets the registers to end with, one a thread.
Result<void> set_thread_state(const store::ProcessImage& image, Child& child, std::vector<store::Registers>& regs,
                              ProgressSink& progress);

/// One script a thread, run in all at once.
using ThreadBatches = std::vector<SyscallBatch>;
Result<void> run_in_threads(const store::ProcessImage& image, ThreadBatches& batches, Child& child);

/// Extended registers, the grant of AMX tiles included.
Result<void> set_extended_registers(const store::ImageReader& image, const store::ProcessImage& process, Child& child);

/// Puts a sleep that was interrupted back into the kernel, where it goes on with the time it had left.
Result<void> resume_sleeps(const store::ProcessImage& image, Child& child, std::vector<store::Registers>& regs);

/// The last step before the release: nothing may run in the threads after it.
Result<void> set_final_registers(const store::ProcessImage& image, const std::vector<store::Registers>& regs);

}  // namespace ckpt::restore
