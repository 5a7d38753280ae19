// Adjustments of System V semaphores (SEM_UNDO) that the kernel would make at the end of a process.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

/// Of one set of semaphores.
struct SemaphoreUndo {
  int set = 0;                   ///< its id
  std::vector<int16_t> changes;  ///< what would be added to each semaphore
};

struct SemaphoreUndoList {
  uint32_t tasks = 0;  ///< that have the list: the threads of a process, and who was cloned with CLONE_SYSVSEM
  std::vector<SemaphoreUndo> sets;  ///< by id, of which any change is not 0
};

/// Those that its first thread has, in the IPC namespace that ckpt is in. kNotFound: it has ended. kPermission,
/// kUnsupported: see KernelMemory.
Result<SemaphoreUndoList> read_semaphore_undo(int pid, int pidfd);

}  // namespace ckpt::proc
