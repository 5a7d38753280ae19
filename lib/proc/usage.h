// What a process does with its time and memory, as far as capturing it wants to know.
#pragma once

#include <cstdint>
#include <optional>

namespace ckpt::proc {

/// Sums since each thread began. What cannot be read counts as nothing.
struct Usage {
  uint64_t faults = 0;     ///< minor page faults of the whole process
  uint64_t ran_us = 0;     ///< on a processor, of the threads that are there
  uint64_t waited_us = 0;  ///< ready, and waiting for a processor
};
/// Two files a thread; of a process with more than 256 threads the faults alone.
Usage read_usage(int pid);
/// Nanoseconds that a thread has had a processor. Nothing: it has ended, or the kernel does not count
/// (CONFIG_SCHED_INFO).
std::optional<uint64_t> read_time_on_processor(int pid, int tid);
/// Pages of private memory that are present: resident ones that are neither a file's nor shared.
uint64_t read_private_pages(int pid);

}  // namespace ckpt::proc
