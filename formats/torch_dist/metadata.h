// `.metadata` of torch's distributed checkpoints, in every form that torch and Megatron have written
// (formats.md 2.2, 2.3).
#pragma once

#include <unordered_map>

#include "formats/format.h"

namespace ckpt::formats {

struct DcpTensor {
  tensor::Tensor
      tensor;  ///< shards as stored; `item` is set, `where` is not: only the item itself says where its bytes are
  tensor::Shape original;    ///< Megatron's nd_reformulated_orig_global_shape; empty: not recorded
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;
  std::vector<tensor::Object> objects;
  std::vector<tensor::FileRange> empty_items;  ///< of chunks without elements
  std::vector<std::string> encoded_objects;  ///< keys of objects whose items are zstd streams
  std::vector<std::string> paths;  ///< FileRange::file is an index into them; all checked to lie below the folder
  std::vector<tensor::Unreadable> unsupported;
  std::vector<std::string> warnings;
  std::vector<tensor::Finding> damage;       ///< missing entries
  bool has_mcore_data = false;
  std::string version;                       ///< torch's own, empty where it is not written
};

enum class KeyPaths : uint8_t {
  kSkip,
  kRead,  ///< planner_data: where each key lay in the nested state dict
};

/// Pure. kCorrupt: not such a pickle, or hostile.
Result<DcpMetadata> parse_dcp_metadata(ByteSpan pickle, uint64_t max_bytes, KeyPaths paths = KeyPaths::kRead);

/// `__<rank>.metadata` of ranks that saved without talking to each other: what `next` has joins `all`. A chunk or
/// object that both have is that of `all`, with a warning. kCorrupt: they contradict each other about a tensor's dtype
/// or shape.
class RankMetadata {
 public:
  Result<void> add(DcpMetadata next);
  DcpMetadata take();

 private:
  DcpMetadata all_;
  std::unordered_map<std::string, size_t> tensors_, objects_;
  std::unordered_map<std::string, uint32_t> paths_;
  uint64_t object_copies_ = 0;
  std::string example_;
};

/// One path below the folder: relative, no empty part, no `.` or `..`, no `\` and no control character.
bool is_safe_relative_path(std::string_view path);

}  // namespace ckpt::formats
