// What a buffer holds: tensors with their places, and objects. Both as bytes that a stranger wrote (man/ckpt-agent.7).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::flash {

/// A step into the nested state dict.
struct Step {
  enum class Kind : uint8_t { kName = 0, kNumber = 1, kIndex = 2 } kind = Kind::kName;
  std::string name;    ///< kName
  int64_t number = 0;  ///< the others
};

struct LayoutTensor {
  std::string key, dtype;  ///< dtype: torch's name without "torch."
  uint32_t item_size = 0;
  std::vector<uint64_t> shape, global_shape, global_offset;
  std::vector<Step> path;
  uint64_t offset = 0, bytes = 0;  ///< in the buffer
};

struct BufferLayout {
  std::vector<LayoutTensor> tensors;
  uint64_t data_bytes = 0;
};

enum class ObjectKind : uint8_t {
  kValue = 0,
  kCommon = 1,   ///< Megatron's common state: no key of its own
  kPrivate = 2,  ///< for loads by the same ranks alone: it goes into kRanksFile, not into the checkpoint
};

/// `bytes`: a torch.save file.
struct StoredObject {
  std::string key;
  ObjectKind kind = ObjectKind::kValue;
  std::vector<Step> path;
  std::string_view bytes;
};

/// Bytes of an element; 0: no dtype of that name.
uint32_t item_size_of(std::string_view dtype);

/// Gives the tensors their places. kUsage: a dtype, a shape that does not fit into its global shape.
Result<void> place_tensors(BufferLayout& layout);

std::string encode_layout(const BufferLayout& layout);
/// kCorrupt: cut short, contradicting itself, or past a limit; tensors that overlap or lie outside of `data_bytes`.
Result<BufferLayout> decode_layout(ByteSpan bytes);

std::string encode_objects(const std::vector<StoredObject>& objects);
/// The objects point into `bytes`.
Result<std::vector<StoredObject>> decode_objects(ByteSpan bytes);

}  // namespace ckpt::flash
