// How a tensor is cut into pieces to be written, and where a piece's bytes already lie as they are wanted.
#pragma once

#include <optional>
#include <vector>

#include "lib/tensor/catalog.h"
#include "lib/tensor/read.h"

namespace ckpt::tensor {

/// The pieces of one tensor, in row-major order of their offsets. They tile the tensor whenever its shards do
/// (`check_shards`). A tensor without elements has one piece, itself.
class Grid {
 public:
  /// One piece per shard that holds elements.
  static Grid as_stored(const Tensor& tensor);
  /// Equal slabs along the leading axes, each at most `max_bytes` (but one element at least); the last ones may be smaller.
  static Grid slabs(const Tensor& tensor, uint64_t max_bytes);

  size_t size() const { return size_; }
  Region piece(const Tensor& tensor, size_t index) const;
  /// The shard that the piece is, where the pieces are the shards.
  std::optional<uint32_t> shard(size_t index) const;

 private:
  size_t size_ = 1;
  std::vector<uint32_t> order_;  ///< as_stored: shards by offset
  Shape slab_, counts_;          ///< slabs: the shape of one, and how many there are along each axis
};

/// The region's bytes as one run of a file, where one raw shard holds them so. `hint`: a shard to try first.
std::optional<FileRange> raw_run(const Tensor& tensor, const Region& region, std::optional<uint32_t> hint);

}  // namespace ckpt::tensor
