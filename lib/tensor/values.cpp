#include "lib/tensor/values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "lib/tensor/elements.h"

namespace ckpt::tensor {

namespace {

/// What an integer or a truth value of one byte means; the floats are `convert_elements`'.
ByteTable make_table(DType dtype) {
  ByteTable out;
  std::array<std::byte, 256> codes;
  for (size_t i = 0; i < 256; ++i) {
    codes[i] = static_cast<std::byte>(i);
    out[i] = dtype == DType::kInt8 ? static_cast<int8_t>(i) : dtype == DType::kBool ? i != 0 : static_cast<float>(i);
  }
  if (is_floating(dtype))
    CKPT_ASSERT(convert_elements(dtype, DType::kFloat32, codes, std::as_writable_bytes(std::span(out))).has_value());
  return out;
}

double half(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : NAN;
  return exponent == 0 ? sign * mantissa * 0x1p-24 : sign * std::ldexp(mantissa + 1024, exponent - 25);
}
double bfloat(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

/// Of both parts as doubles; NaN before infinity.
double magnitude(double re, double im) { return std::isnan(re) || std::isnan(im) ? NAN : std::hypot(re, im); }

/// Applies `value` to every element; `Parts` of type T make one.
template <class T, size_t Parts = 1, class Value>
void convert(ByteSpan in, double* out, Value value) {
  const size_t count = in.size() / (sizeof(T) * Parts);
  for (size_t i = 0; i < count; ++i) {
    std::array<T, Parts> raw;
    std::memcpy(raw.data(), in.data() + i * sizeof raw, sizeof raw);
    if constexpr (Parts == 1) out[i] = value(raw[0]);
    else out[i] = magnitude(value(raw[0]), value(raw[1]));
  }
}

}  // namespace

const ByteTable& byte_table(DType dtype) {
  static const auto kTables = [] {
    std::array<ByteTable, static_cast<size_t>(DType::kFloat4E2m1fnX2) + 1> out{};
    for (size_t i = 0; i < out.size(); ++i) {
      if (item_size(static_cast<DType>(i)) == 1) out[i] = make_table(static_cast<DType>(i));
    }
    return out;
  }();
  return kTables[static_cast<size_t>(dtype)];
}

void to_doubles(DType dtype, ByteSpan in, double* out) {
  auto plain = [](auto x) { return static_cast<double>(x); };
  switch (dtype) {
    case DType::kUint16: return convert<uint16_t>(in, out, plain);
    case DType::kInt16: return convert<int16_t>(in, out, plain);
    case DType::kUint32: return convert<uint32_t>(in, out, plain);
    case DType::kInt32: return convert<int32_t>(in, out, plain);
    case DType::kUint64: return convert<uint64_t>(in, out, plain);
    case DType::kInt64: return convert<int64_t>(in, out, plain);
    case DType::kFloat16: return convert<uint16_t>(in, out, half);
    case DType::kBfloat16: return convert<uint16_t>(in, out, bfloat);
    case DType::kFloat32: return convert<float>(in, out, plain);
    case DType::kFloat64: return convert<double>(in, out, plain);
    case DType::kComplex32: return convert<uint16_t, 2>(in, out, half);
    case DType::kComplex64: return convert<float, 2>(in, out, plain);
    case DType::kComplex128: return convert<double, 2>(in, out, plain);
    case DType::kBool: case DType::kUint8: case DType::kInt8: case DType::kFloat8E4m3fn: case DType::kFloat8E5m2:
    case DType::kFloat8E4m3fnuz: case DType::kFloat8E5m2fnuz: case DType::kFloat8E8m0fnu: case DType::kFloat4E2m1fnX2: {
      const ByteTable& table = byte_table(dtype);
      for (size_t i = 0; i < in.size(); ++i) out[i] = table[static_cast<uint8_t>(in[i])];
    }
  }
}

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool is_floating(DType dtype) { return dtype >= DType::kFloat16 && dtype != DType::kFloat4E2m1fnX2; }

bool is_wide_integer(DType dtype) { return dtype == DType::kUint64 || dtype == DType::kInt64; }

}  // namespace ckpt::tensor
