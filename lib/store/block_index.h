// The records of an image while it is written, found again by their hash: about 64 bytes a block.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/pagemap.h"

namespace ckpt::store {

/// Thread-safe. Records are spread over shards by hash, so that equal chunks meet in one shard.
class BlockIndex {
 public:
  /// What became of a record that was added.
  struct Added {
    PagemapRecord* fresh =
        nullptr;  ///< its chunk is to be stored: fill in `codec` to `stored_check`; it stays where it is
    bool repeated = false;           ///< it refers to an equal chunk
    uint64_t first_address = 0;      ///< of the block that the equal chunk came with
  };
  /// Adds a record, one without data or with the chunk of an ancestor as it is. An equal chunk (same hash, same size)
  /// may be referred to before its bytes are written: a writer whose write fails never commits. `iteration`: that in
  /// which it was pre-copied (ImageWriter::add_precopied), or kFinal.
  Added add(const PagemapRecord& record, uint16_t iteration = kFinal);
  static constexpr uint16_t kFinal = 0xffff;

  /// What `take` found of the iterations: pages that count in the end.
  struct PrecopiedTotals {
    uint64_t data = 0, zero = 0;
  };
  /// All records as the page map has them, references resolved, the iterations settled. `parent_pages`: of which pages
  /// of the block at an address the parent says something. Empties the index; no thread may be adding. A page that was
  /// added twice, other than by pre-copy, is kBug.
  Result<std::vector<PagemapRecord>> take(const std::function<uint16_t(uint64_t)>& parent_pages,
                                          PrecopiedTotals& precopied);

 private:
  /// Marks, in memory only, a record whose chunk is that of the record numbered `offset` in its shard.
  static constexpr Codec kRepeat = Codec{0xff};

  struct Entry {
    PagemapRecord record;
    uint16_t iteration = kFinal;
  };
  static Result<void> settle(std::span<Entry> stack, uint16_t in_parent, std::vector<PagemapRecord>& out,
                             PrecopiedTotals& precopied);

  struct Shard {
    std::mutex mutex;
    std::deque<Entry> entries;          ///< addresses of its elements stay
    std::vector<uint32_t> slots;        ///< open addressing, entry number + 1, 0: free; a power of two
    size_t chunks = 0;                  ///< slots in use

    uint32_t* find_slot(const PagemapRecord& record);
    void grow();
  };

  std::array<Shard, 16> shards_;
};

}  // namespace ckpt::store
