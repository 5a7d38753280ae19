// Where every chunk of a store lies, in memory: about 60 bytes a chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/repository/pack.h"

namespace ckpt::repository {

struct KnownPack {
  std::string name;
  uint64_t size = 0;
  PackTable table;
  bool indexed = false;    ///< an index object has it: whoever wrote it will not take it back
  bool condemned = false;  ///< it may go: nobody may begin to rely on it
};

struct ChunkPlace {
  uint32_t pack = 0, chunk = 0;
};

/// Bits to spread an id by, others in each process: ids that a stranger made up to lie in one place do not.
uint64_t mix(const Id& id);

class Index {
 public:
  /// Its number. Not while others look.
  uint32_t add(KnownPack pack);
  const std::vector<KnownPack>& packs() const { return packs_; }
  KnownPack& pack(uint32_t number) { return packs_[number]; }
  std::optional<uint32_t> find_pack(const std::string& name) const;

  /// One of the places where it lies, of those that `good` accepts.
  std::optional<ChunkPlace> find(const Id& id, const std::function<bool(const KnownPack&)>& good = {}) const;
  /// All of them. `each` says whether to go on.
  template <class Each>
  void find_all(const Id& id, Each each) const {
    if (slots_.empty()) return;
    for (size_t at = mix(id) & mask_; slots_[at].pack != 0; at = (at + 1) & mask_) {
      const ChunkPlace place{slots_[at].pack - 1, slots_[at].chunk};
      if (id_of(place) == id && !each(place)) return;
    }
  }
  const Id& id_of(const ChunkPlace& place) const { return packs_[place.pack].table.ids[place.chunk]; }
  uint32_t length_of(const ChunkPlace& place) const { return packs_[place.pack].table.lengths[place.chunk]; }
  size_t chunks() const { return used_; }

 private:
  struct Slot {
    uint32_t pack = 0, chunk = 0;  ///< pack 0: free, else its number and one
  };
  /// Of a chunk that lies in more packs the rest counts as not there: a store of a stranger's cannot make a search
  /// long.
  static constexpr size_t kMostCopies = 64;
  void grow(size_t chunks);
  void insert(uint32_t pack, uint32_t chunk);

  std::vector<KnownPack> packs_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<Slot> slots_;
  size_t mask_ = 0, used_ = 0;
};

/// A set that many threads fill at once.
class IdSet {
 public:
  IdSet() : shards_(kShards) {}
  /// False: it was in it.
  bool insert(const Id& id);
  bool contains(const Id& id) const;
  size_t size() const;
  template <class Each>
  void for_each(Each each) const {
    for (const Shard& shard : shards_) {
      for (const Id& id : shard.slots) {
        if (!id.empty()) each(id);
      }
    }
  }

 private:
  static constexpr size_t kShards = 64;
  struct Shard {
    mutable std::mutex mutex;
    std::vector<Id> slots;
    size_t used = 0;
  };
  static size_t place(const std::vector<Id>& slots, const Id& id);
  std::vector<Shard> shards_;
};

}  // namespace ckpt::repository
