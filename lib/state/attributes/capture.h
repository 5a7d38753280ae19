// The break, flags of prctl(2), address translation and membarrier registrations of a stopped process.
#pragma once

#include <string_view>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Nice value of the session of a process among sessions (sched(7), The autogroup feature); 0 where there is none.
int read_autogroup_nice(int pid);
/// "/autogroup-12 nice -5".
int parse_autogroup_nice(std::string_view text);

/// By what PR_FUTEX_HASH_GET_SLOTS told: -1 where the kernel may have chosen that many, as it does by threads and
/// processors, and would choose others elsewhere. A program that asked for as many gets what is usual.
int chosen_futex_slots(int64_t slots, size_t threads, int processors);

/// Asked of a thread of the process. kUnsupported: it has segments of its own, or masked addresses.
class AttributeQuestions {
 public:
  explicit AttributeQuestions(proc::CallList& calls);
  Result<void> take(const proc::CallList& calls, store::ProcessImage& image) const;

 private:
  Result<void> refuse_odd_addresses(const proc::CallList& calls, int pid) const;

  size_t break_, dumpable_, death_signal_, subreaper_, thp_disabled_, merge_, permitted_, local_table_, untag_mask_,
      membarrier_, timer_ids_, futex_slots_;
};

}  // namespace ckpt::capture
