// Where the pages of an image belong in the memory of a process that runs already, and moves and removes its mappings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace ckpt::restore {

/// Pure. `target`: an address in the process; `source`: the address in the image. A page of the image has one place at
/// most.
class PagePlaces {
 public:
  struct PageExtent {
    uint64_t target = 0, source = 0, size = 0;
  };

  void add(uint64_t target, uint64_t source, uint64_t size);
  /// What was at [start, end) is gone for good.
  void remove(uint64_t start, uint64_t end);
  /// [from, from + size) is now at `to`; what was there is gone.
  void move(uint64_t from, uint64_t to, uint64_t size);

  /// The page of the image for an address of the process.
  std::optional<uint64_t> source_of(uint64_t target) const;
  /// Where the pages [source, source + size) of the image belong, by target.
  std::vector<PageExtent> places_of(uint64_t source, uint64_t size) const;
  /// Whether something of [start, end) came there by a move.
  bool has_moved(uint64_t start, uint64_t end) const;
  bool empty() const { return by_target_.empty(); }

 private:
  struct Extent {
    uint64_t source, size;
    bool moved;
  };
  std::vector<PageExtent> cut(uint64_t start, uint64_t end);
  void put(uint64_t target, const Extent& extent);

  std::map<uint64_t, Extent> by_target_;
  std::map<uint64_t, uint64_t> by_source_;  ///< the key of by_target_
};

}  // namespace ckpt::restore
