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
  uint32_t record = 0;  ///< index into LoadedImage::records
  uint16_t image = 0;   ///< index into Chain::images: whose record it is
  uint16_t mask = 0;    ///< a subset of the record's data mask
};

struct Chain {
  std::deque<LoadedImage> images;                   ///< the newest first; what refers to it stays valid while parents are added
  std::vector<ImageReader::ResolvedBlock> blocks;   ///< by address
  std::vector<uint32_t> first_source;               ///< of each block in `sources`, and one past the last
  std::vector<Source> sources;

  std::span<const Source> sources_of(size_t block) const {
    return std::span(sources).subspan(first_source[block], first_source[block + 1] - first_source[block]);
  }
  const PagemapRecord& record(const Source& source) const { return images[source.image].records[source.record]; }
  /// The image that stores the record's chunk: its own or an ancestor.
  size_t holder(const Source& source) const { return size_t{source.image} + record(source).ancestor; }
  /// The block at `address`, or nothing.
  std::optional<size_t> find(uint64_t address) const;

  uint64_t stored_bytes() const;
};

/// Opens `dir` and its parents. A missing parent is kNotFound; one with another id, a cycle, a chain of more than
/// kMaxChain images and a chunk that lies outside its ancestor's pages files are kAnswerNo.
Result<Chain> open_chain(const std::filesystem::path& dir);
/// The same in two steps: only the newest image's description, then all pages and parents.
Result<Chain> begin_chain(const std::filesystem::path& dir);
Result<void> load_chain(Chain& chain);

}  // namespace ckpt::store
