// The records of an image while it is written, found again by their hash: about 56 bytes a block.
#pragma once

#include <array>
#include <deque>
#include <mutex>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/pagemap.h"

namespace ckpt::store {

/// Thread-safe. Records are spread over shards by hash, so that equal chunks meet in one shard.
class BlockIndex {
 public:
  /// What became of a record that was added.
  struct Added {
    PagemapRecord* fresh = nullptr;  ///< its chunk is to be stored: fill in `codec` to `stored_check`; it stays where it is
    bool repeated = false;           ///< it refers to an equal chunk
    uint64_t first_address = 0;      ///< of the block that the equal chunk came with
  };
  /// Adds a record, one without data or with the chunk of an ancestor as it is. An equal chunk (same hash, same size) may be
  /// referred to before its bytes are written: a writer whose write fails never commits.
  Added add(const PagemapRecord& record);

  /// All records in the order of the page map, references resolved. Empties the index; no thread may be adding. A page
  /// that was added twice is kBug.
  Result<std::vector<PagemapRecord>> take();

 private:
  /// Marks, in memory only, a record whose chunk is that of the record numbered `offset` in its shard.
  static constexpr Codec kRepeat = Codec{0xff};

  struct Shard {
    std::mutex mutex;
    std::deque<PagemapRecord> records;  ///< addresses of its elements stay
    std::vector<uint32_t> slots;        ///< open addressing, record number + 1, 0: free; a power of two
    size_t chunks = 0;                  ///< slots in use

    uint32_t* find_slot(const PagemapRecord& record);
    void grow();
  };

  std::array<Shard, 16> shards_;
};

}  // namespace ckpt::store
