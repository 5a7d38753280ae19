// ShardedObjects on their way from one checkpoint to another: carried as they are, or, where the target wants them
// inside a list of one element, wrapped by editing their pickle. Nothing of them is ever built or run.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/layout.h"

namespace ckpt::torch_dist {

struct ObjectRecord {
  std::vector<tensor::Part> parts;  ///< text of our own, and ranges of source files
  uint64_t size = 0;
};

enum class Detail : uint8_t {
  kSize,     ///< checksums are left zero: the object's storages need not be read
  kContent,
};

/// wrap: make it a list of one element unless it is one (Megatron's torch_dist). kCorrupt: damaged. kUnsupported: to
/// be wrapped, but no torch.save archive, or one of TorchScript.
Result<ObjectRecord> object_record(const tensor::Catalog& source, const tensor::Object& object, bool wrap,
                                   Detail detail);

/// The content of common.pt out of Megatron 0.19's common_state object: the one element of its list. kUnsupported where
/// the pickle is not such a list or refers to it.
Result<std::string> unwrapped_common(const tensor::Catalog& source);

}  // namespace ckpt::torch_dist
