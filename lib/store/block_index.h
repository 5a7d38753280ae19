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
  /// Adds a record. If it has data and a chunk with the same hash and size is there already, it refers to that one and
  /// nothing is returned; else the caller stores the chunk and fills in `codec` to `stored_check` of the record returned,
  /// which stays where it is. An equal chunk may be referred to before its bytes are written: a writer whose write fails
  /// never commits.
  PagemapRecord* add(const PagemapRecord& record);

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
