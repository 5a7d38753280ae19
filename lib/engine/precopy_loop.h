// Pre-copy: iterations that copy what the processes write while they go on, as long as they pay.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/result.h"
#include "lib/engine/capture_context.h"
#include "lib/engine/downtime.h"
#include "lib/engine/new_image.h"
#include "lib/engine/tracees.h"
#include "lib/memory/precopy.h"
#include "lib/proc/pagemap.h"

namespace ckpt::engine {

class PrecopyLoop {
 public:
  PrecopyLoop(CaptureContext& context, Tracees& tracees, NewImage& image)
      : context_(context),
        tracees_(tracees),
        image_(image),
        downtime_(tracees.running(), context.options, context.runs_on()) {}
  PrecopyLoop(const PrecopyLoop&) = delete;
  PrecopyLoop& operator=(const PrecopyLoop&) = delete;

  /// Until the rest can be copied within the goal. Then the tree has gone on, and is collected anew.
  Result<void> run();
  /// Preparing the freeze window takes time too, on a busy machine much of it: what the processes wrote meanwhile is
  /// copied once more where it has become much.
  Result<void> catch_up();

  /// Whether what a process writes is copied by iterations.
  bool has(int pid) const { return precopy_ && precopy_->has(pid); }
  /// Of those processes, what the freeze window has to copy.
  uint64_t bytes_left() const { return dirty_.bytes; }
  /// What iterations could not read has changed as far as the image is concerned.
  const std::vector<proc::PageRegion>& missed(int pid) const;

 private:
  Result<void> start_tracking(bool all);
  Result<void> add(const capture::Member& member, bool all, capture::Precopy& precopy);
  Result<void> make_tracker(const capture::Member& member, Tracee& tracee);
  Result<void> iterate();
  Result<void> iteration();
  Result<void> barrier();
  uint64_t all_bytes() const;
  uint64_t written_since_scan() const;

  CaptureContext& context_;
  Tracees& tracees_;
  NewImage& image_;
  Downtime downtime_;
  std::optional<capture::Precopy> precopy_;
  capture::Precopy::Dirty dirty_;  ///< what was left after the last iteration
  uint64_t last_began_us_ = 0;     ///< the last iteration
  uint64_t scanned_at_us_ = 0;     ///< when dirty_ was found
};

}  // namespace ckpt::engine
