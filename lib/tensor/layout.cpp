#include "lib/tensor/layout.h"

namespace ckpt::tensor {

uint64_t Part::size() const {
  if (target != nullptr)
    return element_count(padded.empty() ? region.shape : padded).value_or(0) * item_size(target->dtype);
  return range.length > 0 ? range.length : text.size();
}

uint64_t Piece::size() const {
  uint64_t out = 0;
  for (const Part& part : parts) out += part.size();
  return out;
}

}  // namespace ckpt::tensor
