// One Zarr array as a tensor: its chunk grid compared with the files that are there. Of the files only the indexes of
// shards are read.
#pragma once

#include "formats/finish.h"
#include "formats/zarr/array.h"

namespace ckpt::formats {

/// Decodes the chunks of the arrays that were put into it. A chunk's array is told by the chunk's file.
class ZarrDecoder : public tensor::Decoder {
 public:
  /// For the files from `first_file` on, up to those of the next array.
  void add(uint32_t first_file, ZarrArray array) { arrays_.emplace_back(first_file, std::move(array)); }
  bool empty() const { return arrays_.empty(); }
  Result<void> decode(const tensor::Tensor& tensor, const tensor::Shard& shard, ByteSpan encoded,
                      MutableByteSpan out) const override;

 private:
  std::vector<std::pair<uint32_t, ZarrArray>> arrays_;  ///< by the first file
};

class ZarrArrays {
 public:
  ZarrArrays(tensor::Catalog& catalog, DamageLog& damage, const ReadOptions& options);

  /// `folder`: relative to the catalog's root, empty for the root itself. `array`: what its metadata, in the file
  /// `meta`, gave. Damage and unsupported arrays are noted; an Error is only what stops everything (no permission).
  Result<void> add(const std::string& folder, const std::string& meta, const std::string& key, Result<ZarrArray> array);
  /// Gives the catalog its decoder where one is needed.
  void finish();

 private:
  struct Chunk;
  void add_chunks(const std::string& folder, const ZarrArray& array, tensor::Tensor& tensor);
  void add_chunk(const ZarrArray& array, tensor::Tensor& tensor, std::string path, Chunk chunk);
  Result<void> add_shard(const ZarrArray& array, size_t level, const Chunk& outer, tensor::Tensor& tensor);
  Result<std::vector<std::byte>> read_index(const ZarrSharding& level, const Chunk& outer, uint64_t chunks);

  tensor::Catalog& catalog_;
  DamageLog& damage_;
  const ReadOptions& options_;
  uint64_t absent_ = 0;  ///< chunks that the arrays have beyond the files that are there
  uint64_t inner_left_;  ///< inner chunks that the checkpoint may still have
  std::shared_ptr<ZarrDecoder> decoder_ = std::make_shared<ZarrDecoder>();
};

}  // namespace ckpt::formats
