// How much memory the ranks of a job have in common, by the hashes that their images have of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <unordered_map>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::store {

/// Bytes of the parts themselves, what they refer to in their parents left out.
struct CommonMemory {
  uint64_t parts = 0;   ///< that were looked at
  uint64_t bytes = 0;   ///< of pages that are not zero; what one rank has several times counts once
  uint64_t common = 0;  ///< of these, what an earlier rank has, too: a store keeps it once
  bool estimated = false;  ///< both are, from a part of the hashes, drawn by their values
};

/// Told the content of one rank after the other. Memory: for so many hashes, some 50 bytes each.
class CommonCounter {
 public:
  explicit CommonCounter(size_t most = size_t{1} << 22) : most_(most) {}
  void begin_rank() { ++out_.parts; }
  /// One block, by the hash of its content.
  void add(uint64_t hash, uint64_t bytes);
  CommonMemory total() const;

 private:
  void thin_out();

  struct Seen {
    uint32_t last_rank = 0, ranks = 0;
    uint64_t bytes = 0;
  };
  size_t most_;
  uint64_t drawn_ = 0;  ///< hashes with any of these bits are left out
  std::unordered_map<uint64_t, Seen> seen_;
  CommonMemory out_;
};

/// Of the images in `parts`, by their page maps. Equal where blocks of 64 KiB are: what lies at other offsets in them
/// is not found, as it is in a store where pages are not compressed.
Result<CommonMemory> common_memory(const std::vector<std::filesystem::path>& parts, const Cancel& cancel);

}  // namespace ckpt::store
