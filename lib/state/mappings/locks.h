// mlockall(MCL_FUTURE): no call tells of it, but memory that is mapped in such a process is locked from the start.
#pragma once

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Asked of a thread of the process, about the area that ckpt has just mapped there.
class FutureLockQuestion {
 public:
  FutureLockQuestion(proc::CallList& calls, const proc::ParasiteArea& area);
  /// Reads smaps only where the area may be locked.
  Result<void> take(const proc::CallList& calls, store::ProcessImage& image) const;

 private:
  size_t cold_;
  uint64_t area_;
};

}  // namespace ckpt::capture
