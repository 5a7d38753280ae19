// An image with its parents: every page resolved to the chunk that holds it.
#pragma once

#include <deque>
#include <filesystem>
#include <span>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/image.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

constexpr size_t kMaxChain = 1000;

/// Pages of a block that lie in one chunk.
struct Source {
  uint32_t record = 0;  ///< index into PageTable::records of its image
  uint16_t image = 0;   ///< index into Chain::images: whose record it is
  uint16_t mask = 0;    ///< a subset of the record's data mask
};

/// Page maps of a chain, or the same parts of each of them, resolved: who holds the pages of each block.
struct PageTable {
  std::vector<std::span<const PagemapRecord>> records;  ///< of each image, the newest first
  std::vector<ImageReader::ResolvedBlock> blocks;       ///< by address
  std::vector<uint32_t> first_source = {0};             ///< of each block in `sources`, and one past the last
  std::vector<Source> sources;

  std::span<const Source> sources_of(size_t block) const {
    return std::span(sources).subspan(first_source[block], first_source[block + 1] - first_source[block]);
  }
  const PagemapRecord& record(const Source& source) const { return records[source.image][source.record]; }
  /// The image that stores the record's chunk: its own or an ancestor.
  size_t holder(const Source& source) const { return size_t{source.image} + record(source).ancestor; }
  /// The block at `address`, or nothing.
  std::optional<size_t> find(uint64_t address) const;
};

struct Chain {
  std::deque<LoadedImage> images;  ///< the newest first; what refers to it stays valid while parents are added
  PageTable pages;

  uint64_t stored_bytes() const;
};

/// `records` are sound, each for itself. A chunk that lies outside its ancestor's pages files is kCorrupt.
Result<PageTable> resolve_pages(const std::deque<LoadedImage>& images,
                                std::vector<std::span<const PagemapRecord>> records);

/// Opens `dir` and its parents. A missing parent is kNotFound; one with another id, a cycle, a chain of more than
/// kMaxChain images and a chunk that lies outside its ancestor's pages files are kCorrupt.
Result<Chain> open_chain(const std::filesystem::path& dir);
/// The same in steps: only the newest image's description, then its parents', then all pages.
Result<Chain> begin_chain(const std::filesystem::path& dir, Trust trust = Trust::kAnybody);
Result<void> add_parents(Chain& chain);
Result<void> load_pages(Chain& chain);

}  // namespace ckpt::store
