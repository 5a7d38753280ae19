// Copying planned pages into an image: several readers, each moving pages from the process straight into a buffer that it
// reuses, then hashing and writing them.
#pragma once

#include <optional>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/capture/page_plan.h"
#include "lib/store/image.h"

namespace ckpt::capture {

struct CopyOptions {
  unsigned workers = 0;  ///< 0: one a core
  ProgressSink* progress = nullptr;
  const Cancel* cancel = nullptr;
};

/// Reads the blocks' data pages from `pid` (a stopped process, or its frozen fork) and adds them to the image. Memory: one
/// MiB a worker.
Result<void> copy_blocks(int pid, const std::vector<BlockPlan>& blocks, store::ImageWriter& writer, const CopyOptions& options);

/// Pages held in ckpt's own memory between the frozen window and the writing. The buffer is faulted in when it is made:
/// fresh pages are the dearest part of a copy, and the target must not wait for them.
class Staging {
 public:
  /// Nothing when `bytes` exceeds `limit`, or there is no memory.
  static std::optional<Staging> make(uint64_t bytes, uint64_t limit);
  bool fits(const std::vector<BlockPlan>& blocks) const;
  /// Inside the frozen window: nothing but copying. `blocks` must fit.
  Result<void> read(int pid, const std::vector<BlockPlan>& blocks, unsigned workers);
  /// After it: hash, compress, write what the last `read` took.
  Result<void> write(const std::vector<BlockPlan>& blocks, store::ImageWriter& writer, const CopyOptions& options) const;

 private:
  Mapping buffer_;
};

}  // namespace ckpt::capture
