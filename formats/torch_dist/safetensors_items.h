// torch's FileSystemWriter with serialization_format=SAFETENSORS: a `.distcp` file holds its objects and then one
// safetensors file with all of the rank's tensors, and `.metadata` gives each of them the safetensors file's own start.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "formats/safetensors/header.h"
#include "lib/tensor/read.h"

namespace ckpt::formats {

/// Eight bytes of a length that is not absurd, and the header's first brace.
inline constexpr uint64_t kSafetensorsStart = 9;
bool starts_safetensors(ByteSpan first);

/// Headers inside data files, each read once. Thread-safe.
class SafetensorsItems {
 public:
  SafetensorsItems(const tensor::Catalog& catalog, tensor::FileCache& files) : catalog_(catalog), files_(files) {}

  /// Does one begin at the item's start? False where the file cannot be read.
  bool begins_at(const tensor::FileRange& item);
  /// Where the shard's bytes are. kCorrupt: damaged, or the file holds another tensor or chunk under this key.
  Result<tensor::FileRange> find(const tensor::Tensor& tensor, const tensor::Shard& shard);

 private:
  struct File {
    Error error;
    bool good = false;
    SafetensorsHeader header;
    std::map<std::string, tensor::Shape> offsets;
  };
  Result<void> read(const tensor::FileRange& item, File& out);

  const tensor::Catalog& catalog_;
  tensor::FileCache& files_;
  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint64_t>, std::shared_ptr<const File>> read_;
  std::map<std::pair<uint32_t, uint64_t>, bool> begins_;
};

}  // namespace ckpt::formats
