// Interval timers and POSIX timers of a stopped process.
#pragma once

#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/state/timers/record.h"

namespace ckpt::capture {

/// The interval timers of a process, asked of a thread of it.
class IntervalTimerQuestions {
 public:
  explicit IntervalTimerQuestions(proc::CallList& calls);
  /// Those that are armed.
  Result<std::vector<store::IntervalTimer>> take(const proc::CallList& calls) const;

 private:
  std::vector<std::pair<int, size_t>> calls_;  ///< which, call
};

/// By id; asked of the first thread in batches of their own, since there may be thousands.
Result<std::vector<store::PosixTimer>> ask_posix_timers(proc::CallBatch& batch, proc::BatchedThread& leader,
                                                       const store::ProcessImage& image);

}  // namespace ckpt::capture
