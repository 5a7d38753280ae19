// Restartable sequences (rseq(2)).
#pragma once

#include <cstdint>

#include "lib/base/result.h"

namespace ckpt::proc {

/// Where a thread of `pid` with its rseq area at `area` (0: none) goes on that was stopped at `rip`: at the abort
/// handler where it was within a sequence, else at `rip`.
Result<uint64_t> resumption_address(int pid, uint64_t area, uint64_t rip);

}  // namespace ckpt::proc
