// Where the bytes of a checkpoint lie: how a tensor is cut, and what of each file is referred to.
#pragma once

#include <string>
#include <vector>

#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// How many pieces lie along each axis, where the shards are a full grid (pieces of one axis may differ in length).
/// Nothing for other layouts and for none at all.
std::optional<tensor::Shape> shard_grid(const tensor::Tensor& tensor);

struct FileUsage {
  std::string path;
  uint64_t size = 0;
  uint64_t shards = 0;    ///< shards that lie in it
  uint64_t tensors = 0;   ///< tensors that have a shard in it
  uint64_t objects = 0;   ///< objects, the common state included
  uint64_t referred =
      0;  ///< bytes that shards (with the records around them), objects and the common state are, each once
  bool listed = true;     ///< false: in the folder, but nothing of the catalog is in it: metadata, or left over
  bool missing = false;
};

/// Of every file of the catalog and, for a folder, every other file below it; by path. Sizes are the files'. No file is
/// read.
Result<std::vector<FileUsage>> file_usage(const tensor::Catalog& catalog);

}  // namespace ckpt::model
