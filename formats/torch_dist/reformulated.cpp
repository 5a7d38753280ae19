#include "formats/torch_dist/reformulated.h"

#include <algorithm>

namespace ckpt::formats {

using tensor::Shape;

namespace {

/// Elements [begin, end) of the row-major flattening of `local`, as boxes: at most two for each axis and one. `each`
/// gets the box's offset and shape within `local`; boxes come in the order of the elements.
template <class Each>
void range_to_boxes(const Shape& local, uint64_t begin, uint64_t end, Each each) {
  const size_t rank = local.size();
  Shape below(rank, 1);  // elements of one step along each axis
  for (size_t axis = rank - 1; axis-- > 0;) below[axis] = below[axis + 1] * local[axis + 1];
  while (begin < end) {
    // The outermost axis along which a whole step starts here and still fits.
    size_t axis = 0;
    while (axis + 1 < rank && (begin % below[axis] != 0 || end - begin < below[axis])) ++axis;
    Shape offset(rank, 0), shape(local);
    uint64_t rest = begin;
    for (size_t i = 0; i <= axis; ++i) {
      offset[i] = rest / below[i];
      rest %= below[i];
      shape[i] = 1;
    }
    shape[axis] = std::min((end - begin) / below[axis], local[axis] - offset[axis]);
    each(offset, shape, begin);
    begin += shape[axis] * below[axis];
  }
}

}  // namespace

std::optional<std::string> model_key_of(const std::string& key) {
  constexpr std::string_view kState = "optimizer.state.";
  const size_t state = key.find(kState);
  if (state == std::string::npos) return std::nullopt;
  const size_t model = key.find('.', state + kState.size());
  return model == std::string::npos ? std::nullopt : std::optional(key.substr(model + 1));
}

bool is_reformulation(const Shape& stored, const Shape& original) {
  if (original.empty() || stored.size() != original.size() + 1) return false;
  uint64_t row = 1;
  for (size_t i = 0; i < original.size(); ++i) {
    if (stored[i] == 0 || original[i] == 0 || original[i] % stored[i] != 0) return false;
    if (__builtin_mul_overflow(row, original[i] / stored[i], &row)) return false;
  }
  return row == stored.back();
}

bool undo_reformulation(tensor::Tensor& tensor, const Shape& original) {
  if (!is_reformulation(tensor.shape, original)) return false;
  const size_t rank = original.size();
  const uint64_t item = tensor::item_size(tensor.dtype);
  Shape local(rank);
  for (size_t i = 0; i < rank; ++i) local[i] = original[i] / tensor.shape[i];
  for (const tensor::Shard& shard : tensor.shards) {
    if (shard.encoding != tensor::Encoding::kRaw || shard.shape.size() != rank + 1 || shard.offset.size() != rank + 1)
      return false;
    for (size_t i = 0; i < rank; ++i) {
      if (shard.shape[i] > 1 || shard.offset[i] >= tensor.shape[i]) return false;
    }
    if (shard.offset[rank] > tensor.shape[rank] || shard.shape[rank] > tensor.shape[rank] - shard.offset[rank])
      return false;
  }
  std::vector<tensor::Shard> boxes;
  for (const tensor::Shard& shard : tensor.shards) {
    if (tensor::element_count(shard.shape) == uint64_t{0}) continue;
    const uint64_t begin = shard.offset[rank];
    range_to_boxes(local, begin, begin + shard.shape[rank], [&](const Shape& offset, const Shape& shape, uint64_t at) {
      tensor::Shard box;
      box.offset.resize(rank);
      for (size_t i = 0; i < rank; ++i) box.offset[i] = shard.offset[i] * local[i] + offset[i];
      box.shape = shape;
      box.item = shard.item;
      box.where.file = shard.where.file;
      if (shard.where.length != 0) {
        box.where.offset = shard.where.offset + (at - begin) * item;
        box.where.length = *tensor::element_count(shape) * item;
      }
      boxes.push_back(std::move(box));
    });
  }
  tensor.shards = std::move(boxes);
  tensor.shape = original;
  return true;
}

}  // namespace ckpt::formats
