#include "lib/tensor/permute.h"

#include <algorithm>
#include <cstring>

namespace ckpt::tensor {

namespace {

constexpr uint64_t kTile = 32;  ///< elements on a side: both sides of a tile stay in the first cache

struct Plane {
  uint64_t rows = 1, columns = 1;            ///< columns: the last axis, which `to` has together
  uint64_t from_row = 0, from_column = 0;    ///< bytes between neighbours in `from`
  uint64_t to_row = 0;
};

template <size_t kItem>
void copy_plane(const Plane& plane, const std::byte* from, std::byte* to) {
  if (plane.from_column == kItem) {
    for (uint64_t row = 0; row < plane.rows; ++row) {
      std::memcpy(to + row * plane.to_row, from + row * plane.from_row, plane.columns * kItem);
    }
    return;
  }
  for (uint64_t row0 = 0; row0 < plane.rows; row0 += kTile) {
    const uint64_t row1 = std::min(plane.rows, row0 + kTile);
    for (uint64_t column0 = 0; column0 < plane.columns; column0 += kTile) {
      const uint64_t column1 = std::min(plane.columns, column0 + kTile);
      for (uint64_t row = row0; row < row1; ++row) {
        const std::byte* source = from + row * plane.from_row + column0 * plane.from_column;
        std::byte* target = to + row * plane.to_row + column0 * kItem;
        for (uint64_t column = column0; column < column1; ++column, source += plane.from_column, target += kItem) {
          std::memcpy(target, source, kItem);
        }
      }
    }
  }
}

void copy_plane(size_t item, const Plane& plane, const std::byte* from, std::byte* to) {
  switch (item) {
    case 1: return copy_plane<1>(plane, from, to);
    case 2: return copy_plane<2>(plane, from, to);
    case 4: return copy_plane<4>(plane, from, to);
    case 8: return copy_plane<8>(plane, from, to);
    default: return copy_plane<16>(plane, from, to);
  }
}

}  // namespace

bool is_row_major(const Shape& shape, const AxisOrder& axes) {
  uint32_t last = 0;
  for (uint32_t axis : axes) {
    if (shape[axis] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

void to_row_major(const Shape& shape, const AxisOrder& axes, size_t item, ByteSpan from, MutableByteSpan to) {
  const size_t rank = shape.size();
  if (from.empty() || to.empty()) return;
  if (rank < 2 || is_row_major(shape, axes)) {
    std::memcpy(to.data(), from.data(), std::min(from.size(), to.size()));
    return;
  }
  std::vector<uint64_t> from_step(rank), to_step(rank);
  uint64_t stride = item;
  for (size_t i = rank; i-- > 0;) {
    from_step[axes[i]] = stride;
    stride *= shape[axes[i]];
  }
  stride = item;
  for (size_t i = rank; i-- > 0;) {
    to_step[i] = stride;
    stride *= shape[i];
  }
  // A plane of the axis that `to` has together and the one that `from` has; the others are counted around it.
  const size_t last = rank - 1;
  size_t fast = rank - 2;
  for (size_t i = 0; i < last; ++i) {
    if (shape[i] > 1 && (shape[fast] == 1 || from_step[i] < from_step[fast])) fast = i;
  }
  const Plane plane{shape[fast], shape[last], from_step[fast], from_step[last], to_step[fast]};
  std::vector<uint64_t> at(rank, 0);
  uint64_t source = 0, target = 0;
  for (;;) {
    copy_plane(item, plane, from.data() + source, to.data() + target);
    size_t axis = last;
    for (;;) {
      if (axis == 0) return;
      --axis;
      if (axis == fast) continue;
      source += from_step[axis];
      target += to_step[axis];
      if (++at[axis] < shape[axis]) break;
      source -= from_step[axis] * shape[axis];
      target -= to_step[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

void swap_bytes(MutableByteSpan data, size_t unit) {
  auto swap_all = [&](auto word, auto swap) {
    for (size_t i = 0; i + sizeof word <= data.size(); i += sizeof word) {
      std::memcpy(&word, data.data() + i, sizeof word);
      word = swap(word);
      std::memcpy(data.data() + i, &word, sizeof word);
    }
  };
  if (unit == 2) return swap_all(uint16_t{}, [](uint16_t w) { return __builtin_bswap16(w); });
  if (unit == 4) return swap_all(uint32_t{}, [](uint32_t w) { return __builtin_bswap32(w); });
  if (unit == 8) return swap_all(uint64_t{}, [](uint64_t w) { return __builtin_bswap64(w); });
}

uint32_t swap_unit(DType dtype) {
  const bool pair = dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
  return pair ? item_size(dtype) / 2 : item_size(dtype);
}

}  // namespace ckpt::tensor
