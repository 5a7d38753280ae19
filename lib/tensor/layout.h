// What a format's writer comes up with: files as they will be, every offset known before a byte is written. A format
// plans, and one engine (write_files.h) moves the bytes: in parallel, in bounded memory, by the kernel where they lie
// as they are wanted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/selection.h"

namespace ckpt::tensor {

/// An extent of a file to be written. Exactly one of: text; a range of a source file; a region of a target.
struct Part {
  std::string text;
  FileRange range;              ///< where length > 0
  const Target* target = nullptr;
  Region region;
  Shape padded;  ///< not empty: the region is the leading corner of a box of this shape, the rest of it zeros
  std::optional<uint32_t> shard;///< a source shard that may hold the region: a hint

  static Part of(std::string text) {
    return {.text = std::move(text), .range = {}, .region = {}, .padded = {}, .shard = {}};
  }
  static Part of(FileRange range) { return {.text = {}, .range = range, .region = {}, .padded = {}, .shard = {}}; }
  static Part of(const Target& target, Region region, std::optional<uint32_t> shard = {}) {
    return {.text = {}, .range = {}, .target = &target, .region = std::move(region), .padded = {}, .shard = shard};
  }
  uint64_t size() const;        ///< bytes in the file
};

/// Parts one behind another, at most one of them of a tensor.
struct Piece {
  uint64_t offset = 0;          ///< in its file; what lies between two pieces is zero
  std::vector<Part> parts;
  /// Where the CRC-32 of the tensor part goes, or without one of the source's range (four bytes, little endian):
  /// offsets in the file, anywhere in it. The text there has four bytes to be replaced.
  std::vector<uint64_t> crc_slots;
  uint64_t size() const;
};

struct OutputFile {
  using Sink = std::function<Result<void>(std::string_view)>;
  std::string name;             ///< below the destination's folder; may have folders of its own
  size_t first = 0, last = 0;   ///< a data file: pieces [first, last), in the order of their offsets
  uint64_t size = 0;            ///< a data file's exact size, else an estimate
  /// A file that describes others: gives its content to `sink` front to back. It has no pieces.
  std::function<Result<void>(const Sink& sink)> generate;
};

/// Thread-safe once made. The selection must outlive it.
class Layout {
 public:
  virtual ~Layout() = default;
  /// Made on demand, so that the plan of a million pieces stays small.
  virtual Result<Piece> piece(size_t index) const = 0;
  /// Bytes of the piece, cheaply: how the work is divided.
  virtual uint64_t piece_size(size_t index) const = 0;

  std::vector<OutputFile> files;  ///< data files first, then those that are generated, in the order of writing
  std::string last_file;          ///< the one that makes the whole complete
  uint64_t shards = 0;            ///< pieces of tensors
  uint64_t payload_bytes = 0;     ///< of tensors and objects
  std::vector<std::string> notes; ///< what a person should know
  bool as_source = false;         ///< the source's own object is written: what its reader took apart stays whole
};

}  // namespace ckpt::tensor
