// Every page of an image against the memory that was made from it.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/worker_pool.h"
#include "lib/memory/page_plan.h"
#include "lib/state/inventory.h"
#include "lib/store/image.h"

namespace ckpt::engine {

/// Pages that the image has must be those bytes, all others of anonymous and shared memory zero. By all processors,
/// with a bounded number of blocks in memory at a time.
class PageComparison {
 public:
  PageComparison(const store::ImageReader& image, std::vector<std::string>& differences, const Cancel& cancel)
      : image_(image), differences_(differences), cancel_(cancel) {}

  /// A process of `tree` that is frozen. `populated`: the pages that it has of its own.
  Result<void> process(const store::TreeImage& tree, size_t index, const std::string& name,
                       const capture::PagePlan& populated);
  /// A shared memory or a deleted file.
  Result<void> content(int space, uint64_t size, const capture::ContentSource& source, const std::string& name);

  uint64_t pages() const { return pages_; }

 private:
  struct Memory {
    int pid = 0, fd = -1;  ///< fd: of a file, else the memory of `pid`
    int64_t shift = 0;
    std::vector<std::pair<uint64_t, uint64_t>> passed_over;
  };
  struct ComparedBlock {
    uint64_t address = 0;    ///< of a block, in the memory
    uint16_t more = 0;       ///< pages beside those of the image, which are zero
    size_t index = SIZE_MAX; ///< of the image's block; SIZE_MAX: it has none
  };
  Result<void> run(const Memory& memory, const std::vector<ComparedBlock>& pieces, const std::string& name);
  Result<void> compare(const Memory& memory, const ComparedBlock& piece);
  void tell(const std::string& name);

  const store::ImageReader& image_;
  std::vector<std::string>& differences_;
  const Cancel& cancel_;
  std::mutex mutex_;
  std::vector<uint64_t> different_, unreadable_;  ///< addresses of pages
  uint64_t pages_ = 0;
};

}  // namespace ckpt::engine
