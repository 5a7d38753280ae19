// The pages of an image and its parents by address, before the page maps have been taken apart: what somebody needs who
// has no time for all of them.
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/store/chain.h"

namespace ckpt::store {

/// A page map that was read before anybody knew what it should be.
struct UncheckedPagemap {
  std::unique_ptr<std::byte[]> bytes;
  size_t size = 0;
  FileDigest digest;
};
/// Beside the reading of the manifest, which says the size and the digest. Nothing where it cannot be read, or is very
/// large.
std::optional<UncheckedPagemap> read_pagemap_ahead(const std::filesystem::path& dir);

/// Holds the page maps as they lie in the files: 0.1 ms and 0.8 MB for a GiB of memory, a fifth of what resolving them
/// takes. A look is a binary search in each. Hostile input, as for `PagemapParser`. Thread-safe once it is there.
class SparsePages {
 public:
  /// Checks the digests, and nothing else. `images` must outlive it and keep their places. `newest`: taken if it is the
  /// right one.
  static Result<SparsePages> read(const std::deque<LoadedImage>& images, std::optional<UncheckedPagemap> newest);

  /// Whether some image says of a page in [first, last) that it has bytes, here or in a parent. May be wrong with true.
  bool may_have_data(uint64_t first, uint64_t last) const;

  struct PageMapPart {
    std::vector<std::vector<PagemapRecord>> records;  ///< what `table` refers to
    PageTable table;
  };
  /// The blocks that lie in these ranges, wholly or not; the ranges are sorted and do not overlap. kCorrupt: what is
  /// read is damaged.
  Result<PageMapPart> part(std::span<const AddressRange> ranges) const;
  /// All records of an image.
  Result<std::vector<PagemapRecord>> records_of(size_t image) const;

 private:
  struct Map {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;

    size_t records() const;
    uint64_t address(size_t record) const;
    /// The first record at `address` or above.
    size_t find(uint64_t address) const;
    ByteSpan span(size_t first, size_t last) const;
  };
  explicit SparsePages(const std::deque<LoadedImage>& images) : images_(&images) {}

  const std::deque<LoadedImage>* images_;
  std::vector<Map> maps_;  ///< of each image
};

}  // namespace ckpt::store
