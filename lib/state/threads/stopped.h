// A stopped thread: what ptrace tells of it, and what it must be asked by system calls of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/state/threads/record.h"

namespace ckpt::capture {

/// Everything that ptrace gives without running the thread, and what a call of its own that was interrupted needs to go
/// on. `batched` gets its number, registers and mask. kUnsupported: it runs 32-bit code.
Result<void> take_registers(int pid, bool has_pending, proc::BatchedThread& batched, store::Thread& thread,
                            std::vector<std::byte>& xstate);

/// What every thread is asked. It adds its calls when it is made, and reads the answers with `take`; so do those of
/// other kinds.
class ThreadQuestions {
 public:
  explicit ThreadQuestions(proc::CallList& calls);
  Result<void> take(const proc::CallList& calls, store::Thread& thread) const;

 private:
  size_t stack_, clear_tid_, slack_, policy_;
};

}  // namespace ckpt::capture
