#include "lib/tensor/elements.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace ckpt::tensor {

namespace {

enum class Family : uint8_t { kBool, kInteger, kFloat, kComplex };

Family family(DType dtype) {
  switch (dtype) {
    case DType::kBool: return Family::kBool;
    case DType::kFloat16: case DType::kBfloat16: case DType::kFloat32: case DType::kFloat64:
    case DType::kFloat8E4m3fn: case DType::kFloat8E5m2: case DType::kFloat8E4m3fnuz: case DType::kFloat8E5m2fnuz:
    case DType::kFloat8E8m0fnu: return Family::kFloat;
    case DType::kComplex32: case DType::kComplex64: case DType::kComplex128: return Family::kComplex;
    case DType::kUint8:
    case DType::kInt8:
    case DType::kUint16:
    case DType::kInt16:
    case DType::kUint32:
    case DType::kInt32:
    case DType::kUint64: case DType::kInt64: return Family::kInteger;
    default: break;
  }
  return Family::kBool;
}

/// The float that a complex number is a pair of; itself for others.
DType component(DType dtype) {
  switch (dtype) {
    case DType::kComplex32: return DType::kFloat16;
    case DType::kComplex64: return DType::kFloat32;
    case DType::kComplex128: return DType::kFloat64;
    default: return dtype;
  }
}

/// A binary floating-point format of at most 16 bits: sign, exponent, mantissa.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  uint32_t largest;    ///< code of the largest finite number, without the sign
  uint32_t nan;        ///< code of a NaN
  bool has_infinity;   ///< its code is largest + 1
  bool has_minus_zero;
  bool saturates;
};

// OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2); the fnuz forms are of LLVM's APFloat, as torch uses them.
constexpr SmallFloat kHalf{5, 10, 15, 0x7bff, 0x7e00, true, true, false};
constexpr SmallFloat kBrain{8, 7, 127, 0x7f7f, 0x7fc0, true, true, false};
constexpr SmallFloat kE4m3fn{4, 3, 7, 0x7e, 0x7f, false, true, true};
constexpr SmallFloat kE5m2{5, 2, 15, 0x7b, 0x7e, true, true, true};
constexpr SmallFloat kE4m3fnuz{4, 3, 8, 0x7f, 0x80, false, false, true};
constexpr SmallFloat kE5m2fnuz{5, 2, 16, 0x7f, 0x80, false, false, true};

constexpr int kDoubleMantissa = 52, kDoubleBias = 1023;

/// Nothing: the value is infinite or too large and the format has no place for it.
template <SmallFloat F>
std::optional<uint32_t> encode(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (F.exponent_bits + F.mantissa_bits);
  const int exponent = static_cast<int>(bits >> kDoubleMantissa & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << kDoubleMantissa) - 1);
  if (exponent == 0x7ff) {
    if (fraction != 0) return F.nan;
    return F.has_infinity ? std::optional(sign | (F.largest + 1)) : std::nullopt;
  }
  uint32_t code = 0;
  const int e = exponent - kDoubleBias + F.bias;  // what the format would store
  const int drop = kDoubleMantissa - F.mantissa_bits + (e < 1 ? 1 - e : 0);
  if (exponent != 0 && drop <= kDoubleMantissa + 1) {  // else it rounds to zero
    const uint64_t whole = fraction | uint64_t{1} << kDoubleMantissa;
    const uint64_t kept = (whole + (uint64_t{1} << (drop - 1)) - 1 + (whole >> drop & 1)) >> drop;
    // A number that is not subnormal carries its leading one into the exponent.
    code = static_cast<uint32_t>(kept) + (e > 1 ? static_cast<uint32_t>(e - 1) << F.mantissa_bits : 0);
    if (e > (1 << F.exponent_bits) || code > F.largest) {
      if (!F.saturates) return std::nullopt;
      code = F.largest;
    }
  }
  return code == 0 && !F.has_minus_zero ? 0 : sign | code;
}

template <SmallFloat F>
double decode(uint32_t code) {
  const uint32_t sign_bit = 1u << (F.exponent_bits + F.mantissa_bits);
  const double sign = (code & sign_bit) != 0 ? -1.0 : 1.0;
  const uint32_t magnitude = code & (sign_bit - 1);
  if (!F.has_minus_zero && code == F.nan) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude > F.largest) {
    if (F.has_infinity && magnitude == F.largest + 1) return sign * std::numeric_limits<double>::infinity();
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = static_cast<int>(magnitude >> F.mantissa_bits);
  const auto mantissa = static_cast<double>(magnitude & ((1u << F.mantissa_bits) - 1));
  const double unit = std::ldexp(1.0, -F.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(mantissa * unit, 1 - F.bias);
  return sign * std::ldexp(1.0 + mantissa * unit, exponent - F.bias);
}

/// Values of all codes of a format.
template <SmallFloat F>
const std::vector<float>& decoded() {
  static const std::vector<float> kTable = [] {
    std::vector<float> out(size_t{1} << (1 + F.exponent_bits + F.mantissa_bits));
    for (size_t code = 0; code < out.size(); ++code)
      out[code] = static_cast<float>(decode<F>(static_cast<uint32_t>(code)));
    return out;
  }();
  return kTable;
}

// A kind of element: how it is stored and what it is in a calculation. `put` says no where the value has no place.

template <class T>
struct Plain {
  using Stored = T;
  static T get(T stored) { return stored; }
};
template <class T>
struct Integer : Plain<T> {
  static std::optional<T> put(auto value) {
    if (!std::in_range<T>(value)) return std::nullopt;
    return static_cast<T>(value);
  }
};
struct Bool {
  using Stored = uint8_t;
  static uint8_t get(uint8_t stored) { return stored != 0; }
};
struct Double : Plain<double> {
  static std::optional<double> put(double value) { return value; }
};
struct Single : Plain<float> {
  static std::optional<float> put(double value) {
    const auto out = static_cast<float>(value);
    if (std::isinf(out) && !std::isinf(value)) return std::nullopt;
    return out;
  }
};
template <SmallFloat F, class T>
struct Small {
  using Stored = T;
  static float get(T stored) { return decoded<F>()[stored]; }
  static std::optional<T> put(double value) {
    const auto code = encode<F>(value);
    return code ? std::optional(static_cast<T>(*code)) : std::nullopt;
  }
};
struct Scale {  // E8M0: a power of two
  using Stored = uint8_t;
  static double get(uint8_t stored) {
    return stored == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, stored - 127);
  }
};

using Half = Small<kHalf, uint16_t>;
struct Brain : Small<kBrain, uint16_t> {
  static float get(uint16_t stored) { return std::bit_cast<float>(uint32_t{stored} << 16); }
};

template <class From>
std::string shown(typename From::Stored stored) {
  return fmt::format("{}", From::get(stored));
}

/// Integers are converted to floats exactly or not at all: also to those that are stored as integers.
template <class T>
struct IsFloat : std::false_type {};
template <>
struct IsFloat<Double> : std::true_type {};
template <>
struct IsFloat<Single> : std::true_type {};
template <>
struct IsFloat<Brain> : std::true_type {};
template <SmallFloat F, class T>
struct IsFloat<Small<F, T>> : std::true_type {};

template <class From, class To>
std::optional<typename To::Stored> convert_exactly(typename From::Stored stored) {
  const auto value = From::get(stored);
  const auto wide = static_cast<double>(value);
  auto out = To::put(wide);
  if (!out || static_cast<long double>(wide) != static_cast<long double>(value)) return std::nullopt;
  if (static_cast<double>(To::get(*out)) != wide) return std::nullopt;
  return out;
}

template <class From, class To>
Result<void> convert_all(DType to, ByteSpan in, MutableByteSpan out) {
  const size_t count = in.size() / sizeof(typename From::Stored);
  for (size_t i = 0; i < count; ++i) {
    typename From::Stored stored;
    std::memcpy(&stored, in.data() + i * sizeof stored, sizeof stored);
    constexpr bool kExact = std::is_integral_v<decltype(From::get(stored))> && IsFloat<To>::value;
    std::optional<typename To::Stored> made;
    if constexpr (kExact) made = convert_exactly<From, To>(stored);
    else made = To::put(From::get(stored));
    if (!made) {
      return fail(Code::kCorrupt, "", fmt::format("{} has no place in {}", shown<From>(stored), dtype_name(to)));
    }
    std::memcpy(out.data() + i * sizeof *made, &*made, sizeof *made);
  }
  return {};
}

/// The common case, without a branch an element: true where all fit.
bool singles_to_brain(ByteSpan in, MutableByteSpan out) {
  uint32_t lost = 0;
  for (size_t i = 0; i < in.size() / 4; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in.data() + 4 * i, 4);
    const uint32_t magnitude = bits & 0x7fffffff;
    const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    const bool nan = magnitude > 0x7f800000;
    lost |= magnitude < 0x7f800000 && (rounded & 0x7fff) == 0x7f80;
    const auto made = static_cast<uint16_t>(nan ? (bits >> 16 | 0x40) : rounded);
    std::memcpy(out.data() + 2 * i, &made, 2);
  }
  return lost == 0;
}

template <class From>
Result<void> convert_from(DType to, ByteSpan in, MutableByteSpan out) {
  constexpr bool kWhole = std::is_integral_v<decltype(From::get({}))>;
  switch (to) {
    case DType::kFloat16: return convert_all<From, Half>(to, in, out);
    case DType::kBfloat16: return convert_all<From, Brain>(to, in, out);
    case DType::kFloat32: return convert_all<From, Single>(to, in, out);
    case DType::kFloat64: return convert_all<From, Double>(to, in, out);
    case DType::kFloat8E4m3fn: return convert_all<From, Small<kE4m3fn, uint8_t>>(to, in, out);
    case DType::kFloat8E5m2: return convert_all<From, Small<kE5m2, uint8_t>>(to, in, out);
    case DType::kFloat8E4m3fnuz: return convert_all<From, Small<kE4m3fnuz, uint8_t>>(to, in, out);
    case DType::kFloat8E5m2fnuz: return convert_all<From, Small<kE5m2fnuz, uint8_t>>(to, in, out);
    default: break;
  }
  if constexpr (kWhole) {
    switch (to) {
      case DType::kUint8: return convert_all<From, Integer<uint8_t>>(to, in, out);
      case DType::kInt8: return convert_all<From, Integer<int8_t>>(to, in, out);
      case DType::kUint16: return convert_all<From, Integer<uint16_t>>(to, in, out);
      case DType::kInt16: return convert_all<From, Integer<int16_t>>(to, in, out);
      case DType::kUint32: return convert_all<From, Integer<uint32_t>>(to, in, out);
      case DType::kInt32: return convert_all<From, Integer<int32_t>>(to, in, out);
      case DType::kUint64: return convert_all<From, Integer<uint64_t>>(to, in, out);
      case DType::kInt64: return convert_all<From, Integer<int64_t>>(to, in, out);
      default: break;
    }
  }
  return fail(Code::kUsage, "", fmt::format("cannot become {}", dtype_name(to)));
}

}  // namespace

Result<void> check_conversion(DType from, DType to) {
  const auto no = [&](const char* why) {
    return fail(Code::kUsage, fmt::format("{} as {}", dtype_name(from), dtype_name(to)), why);
  };
  const Family f = family(from), t = family(to);
  if (from == to) return {};
  if (to == DType::kFloat8E8m0fnu) return no("is a type of powers of two: values have no place in it");
  if (t == Family::kBool) return no("would lose what is not 0 or 1");
  if ((f == Family::kComplex) != (t == Family::kComplex)) return no("one is complex, the other real");
  if (f == Family::kFloat && t == Family::kInteger) return no("would lose fractions");
  return {};
}

Result<void> convert_elements(DType from, DType to, ByteSpan in, MutableByteSpan out) {
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return {};
  }
  CKPT_TRY(check_conversion(from, to));
  from = component(from), to = component(to);
  if (from == DType::kFloat32 && to == DType::kBfloat16 && singles_to_brain(in, out))
    return {};  // else the slow way names the value
  switch (from) {
    case DType::kBool: return convert_from<Bool>(to, in, out);
    case DType::kUint8: return convert_from<Plain<uint8_t>>(to, in, out);
    case DType::kInt8: return convert_from<Plain<int8_t>>(to, in, out);
    case DType::kUint16: return convert_from<Plain<uint16_t>>(to, in, out);
    case DType::kInt16: return convert_from<Plain<int16_t>>(to, in, out);
    case DType::kUint32: return convert_from<Plain<uint32_t>>(to, in, out);
    case DType::kInt32: return convert_from<Plain<int32_t>>(to, in, out);
    case DType::kUint64: return convert_from<Plain<uint64_t>>(to, in, out);
    case DType::kInt64: return convert_from<Plain<int64_t>>(to, in, out);
    case DType::kFloat16: return convert_from<Half>(to, in, out);
    case DType::kBfloat16: return convert_from<Brain>(to, in, out);
    case DType::kFloat32: return convert_from<Plain<float>>(to, in, out);
    case DType::kFloat64: return convert_from<Plain<double>>(to, in, out);
    case DType::kFloat8E4m3fn: return convert_from<Small<kE4m3fn, uint8_t>>(to, in, out);
    case DType::kFloat8E5m2: return convert_from<Small<kE5m2, uint8_t>>(to, in, out);
    case DType::kFloat8E4m3fnuz: return convert_from<Small<kE4m3fnuz, uint8_t>>(to, in, out);
    case DType::kFloat8E5m2fnuz: return convert_from<Small<kE5m2fnuz, uint8_t>>(to, in, out);
    case DType::kFloat8E8m0fnu: return convert_from<Scale>(to, in, out);
    default: break;
  }
  return fail(Code::kUsage, "", fmt::format("{} cannot become {}", dtype_name(from), dtype_name(to)));
}

}  // namespace ckpt::tensor
