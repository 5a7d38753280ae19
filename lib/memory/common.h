// Pages that several restores of one image have in common until one of them writes to a page: they are put into ckpt's
// own memory once, clear of every address that the tree uses. Each process of each restore is forked from ckpt, so it
// has them from its birth, and moves them to their places (mremap) instead of being filled. The kernel then copies a
// page for whoever writes to it.
//
// Anonymous private memory only: what is shared, locked or of a file is filled for each restore alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/state/mappings/plan.h"
#include "lib/state/tree/held_memory.h"
#include "lib/store/image.h"

namespace ckpt::restore {

class CommonMemory {
 public:
  /// Reads the pages of an image that is loaded. kNoRoom: no memory, or no addresses, for them.
  static Result<CommonMemory> make(const store::ImageReader& image, ProgressSink& progress, const Cancel& cancel);

  /// Marks the mappings of a process that can be moved from here, as Supply::kMove. `for_children`: it is laid out for
  /// those that it forks (sharing.h), who need the rest of this memory as well.
  void offer(size_t process, bool for_children, const store::ProcessImage& layout, MemoryPlan& plan) const;
  /// Pages in the mappings that a plan moves.
  uint64_t pages_of(size_t process, const MemoryPlan& plan) const;
  uint64_t bytes() const { return bytes_; }
  const std::string& image_id() const { return image_id_; }

 private:
  /// A mapping of a process, `at` here.
  struct Piece {
    uint64_t start = 0, end = 0, at = 0, pages = 0;
  };
  using Key = std::pair<size_t, bool>;

  Result<void> place(const store::ImageReader& image, std::map<Key, HeldMemory>& wanted);
  Result<void> fill(const store::ImageReader& image, const std::map<Key, HeldMemory>& wanted, ProgressSink& progress,
                    const Cancel& cancel);

  std::string image_id_;
  Mapping memory_;
  std::map<Key, std::vector<Piece>> pieces_;
  uint64_t bytes_ = 0;
};

}  // namespace ckpt::restore
