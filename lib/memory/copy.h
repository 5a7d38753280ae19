// Copying planned pages into an image: several readers, each moving pages from the process straight into a buffer that
// it reuses, then hashing and writing them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/base/worker_pool.h"
#include "lib/memory/page_plan.h"
#include "lib/store/image.h"

namespace ckpt::capture {

struct CopyOptions {
  unsigned workers = 0;  ///< 0: one a core
  ProgressSink* progress = nullptr;
  const Cancel* cancel = nullptr;
};

/// Blocks of one memory space, and where their pages are read from: a stopped process or its frozen fork (address =
/// that of the block + shift), or a file by offset.
struct SpaceBlocks {
  int space = 0;
  int pid = 0;
  int fd = -1;         ///< instead of `pid`
  int64_t shift = 0;
  std::vector<BlockPlan> blocks;
};

uint64_t total_bytes(const std::vector<SpaceBlocks>& parts);

/// Reads the blocks' data pages and adds them to the image. Memory: one MiB a worker.
Result<void> copy_blocks(const std::vector<SpaceBlocks>& parts, store::ImageWriter& writer, const CopyOptions& options);

/// Reads each block's data pages and hands them to `take`, with the number of the block in `part`: nothing of a block
/// that cannot be read. From the threads of `pool`, too (null: this one alone), each block once.
void read_each_block(const SpaceBlocks& part, WorkerPool* pool, const std::function<void(size_t, ByteSpan)>& take);

/// What an iteration of pre-copy found out.
struct Precopied {
  std::vector<proc::PageRegion>
      missed;  ///< of space `missed_space[i]`: could not be read, since mappings or processes went away meanwhile
  std::vector<int> missed_space;
  uint64_t bytes = 0;
};
/// As `copy_blocks`, from processes that run: the pages are handed to the image as those of an iteration
/// (ImageWriter::add_precopied).
Result<Precopied> pre_copy(const std::vector<SpaceBlocks>& parts, unsigned iteration, store::ImageWriter& writer,
                           const CopyOptions& options);

/// Pages held in ckpt's own memory between the frozen window and the writing. The buffer is faulted in when it is made:
/// fresh pages are the dearest part of a copy, and the target must not wait for them.
class Staging {
 public:
  /// Nothing when `bytes` exceeds `limit`, or there is no memory.
  static std::optional<Staging> make(uint64_t bytes, uint64_t limit);
  bool fits(const std::vector<SpaceBlocks>& parts) const;
  /// Inside the frozen window: nothing but copying. `parts` must fit.
  Result<void> read(const std::vector<SpaceBlocks>& parts, WorkerPool* pool);
  /// After it: hash, compress, write what the last `read` took.
  Result<void> write(const std::vector<SpaceBlocks>& parts, store::ImageWriter& writer,
                     const CopyOptions& options) const;

 private:
  Mapping buffer_;
};

}  // namespace ckpt::capture
