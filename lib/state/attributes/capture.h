// The break, flags of prctl(2), securebits and membarrier registrations of a stopped process.
#pragma once

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Asked of a thread of the process.
class AttributeQuestions {
 public:
  explicit AttributeQuestions(proc::CallList& calls);
  Result<void> take(const proc::CallList& calls, store::ProcessImage& image) const;

 private:
  size_t break_, dumpable_, death_signal_, subreaper_, thp_disabled_, securebits_, membarrier_;
};

}  // namespace ckpt::capture
