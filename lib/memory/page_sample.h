// dump --validate-sample: some of the pages that write tracking calls unchanged, compared with what the image has.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/memory/copy.h"
#include "lib/store/image.h"

namespace ckpt::capture {

/// Of each page that is drawn its hash is kept: 16 bytes.
class PageSample {
 public:
  /// `part`: of the blocks of 64 KiB, above 0, at most 1.
  explicit PageSample(double part) : part_(part) {}

  /// Draws from the pages in the parent masks of `unchanged`, at least one block, and hashes what is there now. Pages
  /// that cannot be read are left out.
  void read(SpaceBlocks unchanged, WorkerPool* pool);
  /// Forgets what was drawn.
  void clear() { drawn_.clear(), hashes_.clear(); }
  bool empty() const { return drawn_.empty(); }

  struct Compared {
    uint64_t pages = 0;      ///< that were compared: what a mapped file has, and the image not, is none of them
    uint64_t different = 0;
    uint64_t first = 0;      ///< address of the first different one, with its memory space
  };
  /// With what `image`, which describes the same processes, has at their places. An Error: a page cannot be had from
  /// it.
  Result<Compared> compare(const store::ImageReader& image, unsigned workers) const;

 private:
  struct Drawn {
    uint64_t address = 0;  ///< of the block, with its memory space
    uint16_t mask = 0;
    size_t first = 0;  ///< of its hashes
  };
  std::vector<BlockPlan> draw(const std::vector<BlockPlan>& unchanged);

  double part_;
  std::mt19937_64 random_{std::random_device{}()};
  std::vector<Drawn> drawn_;
  std::vector<Hash128> hashes_;
};

}  // namespace ckpt::capture
