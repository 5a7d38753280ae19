// Tensors whose bytes are not row-major and little endian where they are stored: views with strides (transposed,
// sliced, expanded), lazily conjugated or negated ones, files of big-endian machines.
#pragma once

#include <vector>

#include "formats/pickle/torch_tensor.h"
#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::formats {

struct StoredLayout {
  std::vector<uint64_t> stride;   ///< elements, per axis
  bool conjugated = false, negated = false, big_endian = false;
};

/// Nothing where the bytes are right as they are. kUnsupported: a negated tensor of a type that has no sign.
Result<std::optional<StoredLayout>> stored_layout(const pickle::TorchTensor& tensor, bool big_endian);

/// Bytes from a box's first element to its last; 0 for one without elements. The product must be countable.
uint64_t stored_extent(const StoredLayout& layout, tensor::DType dtype, const tensor::Shape& shape);

/// Row-major little-endian bytes of a box whose first element is at the start of `stored`. kCorrupt: an element lies
/// outside.
Result<void> lay_out(const StoredLayout& layout, tensor::DType dtype, const tensor::Shape& shape, ByteSpan stored,
                     MutableByteSpan out);

}  // namespace ckpt::formats
