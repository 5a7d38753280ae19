#include "formats/torch_save/stored_layout.h"

#include <algorithm>
#include <cstring>

namespace ckpt::formats {

using tensor::DType;

namespace {

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool is_float(DType dtype) {
  return is_complex(dtype) || dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

/// Bytes of what has a byte order and a sign of its own: half of a complex number.
size_t component_size(DType dtype) { return item_size(dtype) / (is_complex(dtype) ? 2 : 1); }

/// The innermost axis is copied by a loop over elements of a known size.
template <size_t kSize>
void gather(const StoredLayout& layout, const tensor::Shape& shape, const std::byte* from, MutableByteSpan out) {
  const size_t outer = shape.empty() ? 0 : shape.size() - 1;
  const uint64_t count = shape.empty() ? 1 : shape.back(), step = shape.empty() ? 1 : layout.stride.back();
  tensor::Shape at(outer, 0);
  uint64_t place = 0;
  for (std::byte* to = out.data(); to != out.data() + out.size();) {
    const std::byte* source = from + place * kSize;
    if (step == 1) {
      std::memcpy(to, source, count * kSize);
      to += count * kSize;
    } else {
      for (uint64_t i = 0; i < count; ++i, to += kSize, source += step * kSize) std::memcpy(to, source, kSize);
    }
    for (size_t axis = outer; axis-- > 0;) {
      place += layout.stride[axis];
      if (++at[axis] < shape[axis]) break;
      place -= layout.stride[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

/// The sign bit of every `every`-th component from `first` on, little endian.
void flip_signs(MutableByteSpan data, size_t component, size_t first, size_t every) {
  for (size_t at = (first + 1) * component - 1; at < data.size(); at += every * component) data[at] ^= std::byte{0x80};
}

/// Two's complement of every element.
void negate_integers(MutableByteSpan data, size_t size) {
  for (size_t at = 0; at < data.size(); at += size) {
    uint64_t value = 0;
    std::memcpy(&value, data.data() + at, size);
    value = ~value + 1;
    std::memcpy(data.data() + at, &value, size);
  }
}

}  // namespace

Result<std::optional<StoredLayout>> stored_layout(const pickle::TorchTensor& t, bool big_endian) {
  big_endian = big_endian && component_size(t.dtype) > 1;
  const bool integer =
      t.dtype == DType::kInt8 || t.dtype == DType::kInt16 || t.dtype == DType::kInt32 || t.dtype == DType::kInt64;
  if ((t.conjugated && !is_complex(t.dtype)) || (t.negated && !is_float(t.dtype) && !integer)) {
    return fail(Code::kUnsupported, "", "a negated tensor of " + std::string(dtype_name(t.dtype)));
  }
  if (t.contiguous() && !big_endian && !t.conjugated && !t.negated) return std::optional<StoredLayout>();
  return std::optional(StoredLayout{t.stride, t.conjugated, t.negated, big_endian});
}

uint64_t stored_extent(const StoredLayout& layout, DType dtype, const tensor::Shape& shape) {
  uint64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * layout.stride[i];
  }
  return (last + 1) * item_size(dtype);
}

Result<void> lay_out(const StoredLayout& layout, DType dtype, const tensor::Shape& shape, ByteSpan stored,
                     MutableByteSpan out) {
  if (stored_extent(layout, dtype, shape) > stored.size())
    return fail(Code::kCorrupt, "", "reaches beyond its storage");
  switch (item_size(dtype)) {
    case 1: gather<1>(layout, shape, stored.data(), out); break;
    case 2: gather<2>(layout, shape, stored.data(), out); break;
    case 4: gather<4>(layout, shape, stored.data(), out); break;
    case 8: gather<8>(layout, shape, stored.data(), out); break;
    default: gather<16>(layout, shape, stored.data(), out); break;
  }
  const size_t component = component_size(dtype);
  if (layout.big_endian) {
    for (size_t at = 0; at < out.size(); at += component) std::reverse(out.data() + at, out.data() + at + component);
  }
  if (layout.negated && is_float(dtype)) flip_signs(out, component, 0, 1);
  else if (layout.negated) negate_integers(out, component);
  if (layout.conjugated) flip_signs(out, component, 1, 2);
  return {};
}

}  // namespace ckpt::formats
