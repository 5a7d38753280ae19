#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/zarr/array.h"
#include "lib/tensor/values.h"

namespace ckpt::formats {

using nlohmann::json;
using tensor::DType;
using Bytes = std::vector<std::byte>;

namespace {

template <class Value>
Bytes bytes_of(Value value) {
  Bytes out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

/// A float as IEEE half, round to nearest even; what is too large becomes infinity.
uint16_t to_half(double value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14)
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24)));
  int exponent = 0;
  double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  auto mantissa = static_cast<uint32_t>(std::nearbyint(fraction * 0x1p11));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + static_cast<int>(mantissa) - 1024));
}

uint16_t to_bfloat16(double value) {
  auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// The eight bits that are exactly this value; nothing: there are none.
std::optional<Bytes> to_float8(DType dtype, double value) {
  const tensor::ByteTable& values = tensor::byte_table(dtype);
  for (size_t bits = 0; bits < values.size(); ++bits) {
    const double known = values[bits];
    const bool same =
        std::isnan(value) ? std::isnan(known) : known == value && std::signbit(known) == std::signbit(value);
    if (same) return Bytes{static_cast<std::byte>(bits)};
  }
  return std::nullopt;
}

std::optional<double> number_of(const json& fill) {
  if (fill.is_number()) return fill.get<double>();
  if (fill.is_boolean()) return fill.get<bool>() ? 1.0 : 0.0;
  if (fill == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (fill == "Infinity") return std::numeric_limits<double>::infinity();
  if (fill == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// "0x7fc0": the bits of one number.
std::optional<Bytes> hex_bits(const json& fill, size_t bytes) {
  if (!fill.is_string()) return std::nullopt;
  const std::string text = fill.get<std::string>();
  uint64_t bits = 0;
  if (text.size() != 2 + 2 * bytes || text.compare(0, 2, "0x") != 0) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  Bytes out = bytes_of(bits);
  out.resize(bytes);
  return out;
}

/// An integer fill value, the two's complement of `bytes` bytes; nothing when it does not fit. 7.0 is an integer, too.
std::optional<Bytes> integer_fill(const json& fill, size_t bytes, bool is_signed) {
  bool negative = false;
  uint64_t magnitude = 0;
  if (fill.is_number_unsigned()) {
    magnitude = fill.get<uint64_t>();
  } else if (fill.is_number_integer()) {
    negative = fill.get<int64_t>() < 0;
    magnitude = negative ? 0 - static_cast<uint64_t>(fill.get<int64_t>()) : static_cast<uint64_t>(fill.get<int64_t>());
  } else {
    auto number = number_of(fill);
    if (!number || !(std::fabs(*number) < 0x1p53) || std::trunc(*number) != *number) return std::nullopt;
    negative = *number < 0;
    magnitude = static_cast<uint64_t>(std::fabs(*number));
  }
  const unsigned bits = static_cast<unsigned>(bytes) * 8;
  const uint64_t largest = (is_signed    ? uint64_t{1} << (bits - 1)
                            : bits == 64 ? 0
                                         : uint64_t{1} << bits) -
                           (negative ? 0 : 1);
  if ((negative && !is_signed) || magnitude > largest) return std::nullopt;
  auto out = bytes_of(negative ? 0 - magnitude : magnitude);
  out.resize(bytes);
  return out;
}

std::optional<Bytes> real_fill(const json& fill, DType dtype) {
  if (auto bits = hex_bits(fill, tensor::item_size(dtype))) return bits;
  auto number = number_of(fill);
  if (!number) return std::nullopt;
  switch (dtype) {
    case DType::kFloat16: return bytes_of(to_half(*number));
    case DType::kBfloat16: return bytes_of(to_bfloat16(*number));
    case DType::kFloat32: return bytes_of(static_cast<float>(*number));
    case DType::kFloat64: return bytes_of(*number);
    default: return to_float8(dtype, *number);
  }
}

std::optional<Bytes> fill_bytes(const json& fill, DType dtype) {
  switch (dtype) {
    case DType::kBool:
      if (fill.is_number() && fill != 0 && fill != 1) return std::nullopt;
      return integer_fill(fill, 1, false);
    case DType::kUint8: case DType::kUint16: case DType::kUint32: case DType::kUint64:
      return integer_fill(fill, tensor::item_size(dtype), false);
    case DType::kInt8: case DType::kInt16: case DType::kInt32: case DType::kInt64:
      return integer_fill(fill, tensor::item_size(dtype), true);
    case DType::kComplex32: case DType::kComplex64: case DType::kComplex128: {
      // zarr-python writes [real, imaginary] or, for zero, one number.
      const DType part = dtype == DType::kComplex32   ? DType::kFloat16
                         : dtype == DType::kComplex64 ? DType::kFloat32
                                                      : DType::kFloat64;
      const bool pair = fill.is_array() && fill.size() == 2;
      auto real = real_fill(pair ? fill[0] : fill, part);
      auto imaginary = real_fill(pair ? fill[1] : json(0.0), part);
      if (!real || !imaginary) return std::nullopt;
      real->insert(real->end(), imaginary->begin(), imaginary->end());
      return real;
    }
    default: return real_fill(fill, dtype);
  }
}

}  // namespace

Result<Bytes> parse_fill_value(std::string_view text, DType dtype) {
  const json fill = json::parse(text, nullptr, false);
  auto bytes = fill_bytes(fill, dtype);
  if (bytes) return std::move(*bytes);
  return fail(Code::kUnsupported, "",
              "fill_value " + std::string(text) + " is not a value of dtype " + std::string(tensor::dtype_name(dtype)));
}

}  // namespace ckpt::formats
