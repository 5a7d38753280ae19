// Tensor bytes out of a checkpoint: any box of a tensor as little-endian row-major elements, whatever the shards are.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lib/tensor/catalog.h"

namespace ckpt::tensor {

/// The checkpoint's files, a bounded number of them open at a time. Thread-safe; a descriptor lives as long as its
/// holder.
class FileCache {
 public:
  explicit FileCache(const Catalog& catalog, size_t limit = 64) : catalog_(catalog), limit_(limit) {}
  Result<std::shared_ptr<const UniqueFd>> open(uint32_t index);

 private:
  using Entry = std::pair<uint32_t, std::shared_ptr<const UniqueFd>>;
  const Catalog& catalog_;
  size_t limit_;
  std::mutex mutex_;
  std::list<Entry> recent_;  ///< latest use first
  std::unordered_map<uint32_t, std::list<Entry>::iterator> index_;
};

/// For catalogs that were read with tolerate_damage. kCorrupt: the tensor cannot be read, for its shards do not tile
/// it, or some have no bytes.
Result<void> check_readable(const Catalog& catalog, const Tensor& tensor);

/// A box of a tensor.
struct Region {
  Shape offset, shape;
};

/// Consecutive boxes whose elements, one after another, are the tensor's row-major elements; each at most `max_bytes`
/// (one element at least). Streaming through them needs that much memory.
class RowMajorBlocks {
 public:
  RowMajorBlocks(const Tensor& tensor, uint64_t max_bytes)
      : RowMajorBlocks(tensor.shape, item_size(tensor.dtype), max_bytes) {}
  RowMajorBlocks(const Shape& shape, uint32_t item_size, uint64_t max_bytes);
  /// Nothing after the last one. An empty tensor has none.
  std::optional<Region> next();

 private:
  Shape shape_, block_, at_;
  bool done_ = false;
};

/// Copies a row-major box into the leading corner of a larger one.
void place_corner(ByteSpan from, const Shape& from_shape, MutableByteSpan to, const Shape& to_shape,
                  uint32_t item_size);

/// One per thread. Memory: a window of 1 MiB, and one decoded shard with its encoded bytes where shards are encoded.
class RegionReader {
 public:
  /// Both must outlive the reader.
  RegionReader(const Catalog& catalog, FileCache& files) : catalog_(catalog), files_(files) {}

  /// Fills `out` (exactly the region's bytes). The catalog must come from a read with locate_data, and the tensor's
  /// shards must tile it (`check_shards`): bytes that no shard covers are zero.
  Result<void> read(const Tensor& tensor, const Region& region, MutableByteSpan out);

 private:
  struct Copy;
  Result<uint64_t> copy_shards(const Tensor& tensor, const Region& region, MutableByteSpan out);
  Result<uint64_t> copy_shard(const Tensor& tensor, const Shard& shard, const Region& region, MutableByteSpan out);
  Result<void> copy_raw(const Tensor& tensor, const Shard& shard, const Copy& copy, MutableByteSpan out);
  Result<ByteSpan> decoded(const Tensor& tensor, const Shard& shard);
  void index_tensor(const Tensor& tensor);

  const Catalog& catalog_;
  FileCache& files_;
  std::vector<std::byte> window_, encoded_, decoded_;
  const Shard* decoded_shard_ = nullptr;
  const Tensor* indexed_ = nullptr;
  std::vector<uint32_t> order_;   ///< the indexed tensor's shards by their offset on the first axis
  uint64_t longest_ = 0;          ///< the longest shard on that axis
};

}  // namespace ckpt::tensor
