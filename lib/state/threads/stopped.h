// A stopped thread: what ptrace tells of it, and what it must be asked by system calls of its own.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/state/threads/record.h"

namespace ckpt::capture {

/// Everything that ptrace gives without running the thread, and what a call of its own that was interrupted needs to go
/// on. `batched` gets its number, registers and mask. kUnsupported: it runs 32-bit code, or has
/// its system calls dispatched to itself.
Result<void> take_registers(int pid, bool has_pending, proc::BatchedThread& batched, store::Thread& thread,
                            std::vector<std::byte>& xstate);

/// What every thread is asked. It adds its calls when it is made, and reads the answers with `take`; so do those of
/// other kinds. kUnsupported: instructions of it are trapped.
class ThreadQuestions {
 public:
  explicit ThreadQuestions(proc::CallList& calls);
  Result<void> take(const proc::CallList& calls, store::Thread& thread) const;

 private:
  Result<void> refuse_trapped_instructions(const proc::CallList& calls, int tid) const;

  size_t stack_, clear_tid_, slack_, securebits_, death_signal_, clock_reads_, cpuid_, mce_kill_,
      policy_, personality_;
  std::array<size_t, 3> speculation_{};
};

}  // namespace ckpt::capture
