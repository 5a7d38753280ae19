// What of a checkpoint is to be written, and as what: tensors under other names, of other types, in other shapes. The
// source's Catalog stays as it is; a Target says how one of its tensors is seen, and a TargetReader reads it that way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/tensor/catalog.h"
#include "lib/tensor/read.h"

namespace ckpt::tensor {

struct Target {
  uint32_t source = 0;  ///< index into Catalog::tensors
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;          ///< of the source's rank; where longer than the source's: filled with zeros; where shorter: cut
  uint64_t bytes() const;
};

struct ObjectTarget {
  uint32_t source = 0;  ///< index into Catalog::objects
  std::string key;
};

struct Selection {
  const Catalog* source = nullptr;
  std::vector<Target> tensors;        ///< sorted by key
  std::vector<ObjectTarget> objects;  ///< sorted by key
  bool common = true;                 ///< the common state too, where there is one
  std::vector<std::string> notes;     ///< what a person should know about how these came to be

  /// Everything of a checkpoint, as it is.
  static Selection all(const Catalog& source);
  const Tensor& tensor(const Target& target) const { return source->tensors[target.source]; }
  const Object& object(const ObjectTarget& target) const { return source->objects[target.source]; }
};

/// True where the target's elements are the source's: same type, same shape.
bool is_unchanged(const Selection& selection, const Target& target);

/// Checks that the source's shards tile their tensor and lie inside their files, and that decoding one fits into
/// `budget` bytes. kCorrupt: damaged; every finding is a cause. kNoRoom: the budget, with what it takes as a hint for
/// --max-memory.
Result<void> check_source(const Catalog& source, const Tensor& tensor, uint64_t budget);

/// Memory that decoding a shard takes: encoded, decoded and the codec's scratch. 0 where it is not encoded.
uint64_t decode_memory(const Tensor& tensor, const Shard& shard);
/// The largest of them over the tensor's shards.
uint64_t decode_memory(const Tensor& tensor);
/// What of a limit for the whole process may hold encoded shards: the rest is buffers, the plan and the program.
uint64_t decode_budget(uint64_t max_memory);

/// How many workers may decode at once.
class DecodeLimit {
 public:
  explicit DecodeLimit(uint64_t max_memory) : budget_(decode_budget(max_memory)) {}
  /// Of the tensor a worker holds a decoded shard, and as much of each of `sides` checkpoints that it compares.
  /// kNoRoom: even one takes too much, with what it takes as a hint for --max-memory.
  Result<void> add(const Tensor& tensor, unsigned sides = 1);
  /// At most `asked` (0: one per core).
  unsigned workers(unsigned asked) const;

 private:
  uint64_t budget_, largest_ = 0;
};

/// At most `limit` bytes, for blocks of whole rows of the region: as many rows as whole encoded shards have, so that
/// two blocks do not decode the same one. `limit` itself where nothing is encoded or a row of shards is larger.
uint64_t block_bytes(const Selection& selection, const Target& target, const Shape& region, uint64_t limit);

/// One per thread; both must outlive it.
class TargetReader {
 public:
  TargetReader(const Selection& selection, FileCache& files)
      : selection_(selection), reader_(*selection.source, files) {}
  /// Fills `out` (exactly the region's bytes in the target's type). kCorrupt: damaged, or a value that the target's
  /// type cannot hold (elements.h).
  Result<void> read(const Target& target, const Region& region, MutableByteSpan out);

 private:
  Result<void> read_stored(const Target& target, const Region& region, MutableByteSpan out);

  const Selection& selection_;
  RegionReader reader_;
  std::vector<std::byte> stored_, part_;
};

/// The region's bytes as one run of a source file, where they lie there as they are wanted. `hint`: the only shard to
/// look at.
std::optional<FileRange> raw_run(const Tensor& tensor, const Region& region, std::optional<uint32_t> hint);
std::optional<FileRange> raw_run(const Selection& selection, const Target& target, const Region& region,
                                 std::optional<uint32_t> hint);

}  // namespace ckpt::tensor
