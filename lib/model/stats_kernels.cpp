// Written with the compilers' vector types, once: the same code is compiled for AVX2 and for the base of x86-64, and
// one of them is chosen at run time. Sums are in double whatever the elements are.
#include "lib/model/stats_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/tensor/values.h"

// Vectors are passed between functions that are inlined only: their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace ckpt::model {

namespace {

#define CKPT_INLINE [[gnu::always_inline]] inline

using F8 [[gnu::vector_size(32)]] = float;
using I8 [[gnu::vector_size(32)]] = int32_t;
using U8 [[gnu::vector_size(32)]] = uint32_t;
using H8 [[gnu::vector_size(16)]] = uint16_t;
using F4 [[gnu::vector_size(16)]] = float;
using D4 [[gnu::vector_size(32)]] = double;
using L4 [[gnu::vector_size(32)]] = int64_t;

template <class V>
CKPT_INLINE V load(const void* from) {
  V out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

/// The elements after the last whole vector, and the lanes put together.
template <class T, class V, class I>
CKPT_INLINE BlockSums finish(const T* x, size_t done, size_t count, double shift, const V& lo, const V& hi,
                             const I& zeros, const D4& sum, const D4& squares) {
  BlockSums out;
  constexpr size_t kLanes = sizeof(V) / sizeof(T);
  T least = std::numeric_limits<T>::infinity(), most = -least;
  for (size_t i = 0; i < kLanes; ++i) {
    least = std::min<T>(least, lo[i]);
    most = std::max<T>(most, hi[i]);
    out.zeros -= static_cast<uint64_t>(static_cast<int64_t>(zeros[i]));  // a true lane counts -1
  }
  for (size_t i = 0; i < 4; ++i) {
    out.sum += sum[i];
    out.squares += squares[i];
  }
  for (size_t i = done; i < count; ++i) {
    least = std::min(least, x[i]);
    most = std::max(most, x[i]);
    out.zeros += x[i] == 0;
    const double d = static_cast<double>(x[i]) - shift;
    out.sum += d;
    out.squares += d * d;
  }
  out.min = least;
  out.max = most;
  // A NaN or an infinity anywhere has made its way into the sum of squares.
  out.usable = std::isfinite(out.squares) && std::isfinite(out.sum);
  return out;
}

CKPT_INLINE BlockSums scan(const float* x, size_t count, double shift) {
  const float inf = std::numeric_limits<float>::infinity();
  F8 lo = F8{} + inf, hi = F8{} - inf;
  I8 zeros{};
  D4 sum0{}, sum1{}, squares0{}, squares1{};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const F8 v = load<F8>(x + i);
    lo = v < lo ? v : lo;
    hi = v > hi ? v : hi;
    zeros += v == 0.0f;
    const D4 d0 = __builtin_convertvector(load<F4>(x + i), D4) - shift;
    const D4 d1 = __builtin_convertvector(load<F4>(x + i + 4), D4) - shift;
    sum0 += d0;
    sum1 += d1;
    squares0 += d0 * d0;
    squares1 += d1 * d1;
  }
  return finish(x, i, count, shift, lo, hi, zeros, sum0 + sum1, squares0 + squares1);
}

CKPT_INLINE BlockSums scan(const double* x, size_t count, double shift) {
  const double inf = std::numeric_limits<double>::infinity();
  D4 lo = D4{} + inf, hi = D4{} - inf;
  L4 zeros{};
  D4 sum0{}, sum1{}, squares0{}, squares1{};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const D4 v0 = load<D4>(x + i), v1 = load<D4>(x + i + 4);
    lo = v0 < lo ? v0 : lo;
    lo = v1 < lo ? v1 : lo;
    hi = v0 > hi ? v0 : hi;
    hi = v1 > hi ? v1 : hi;
    zeros += (v0 == 0.0) + (v1 == 0.0);
    const D4 d0 = v0 - shift, d1 = v1 - shift;
    sum0 += d0;
    sum1 += d1;
    squares0 += d0 * d0;
    squares1 += d1 * d1;
  }
  return finish(x, i, count, shift, lo, hi, zeros, sum0 + sum1, squares0 + squares1);
}

/// Both 16-bit floats by integer arithmetic, eight at a time; `out` has room for whole vectors.
template <class Bits>
CKPT_INLINE void widen_floats(const std::byte* in, size_t count, float* out, Bits bits) {
  for (size_t i = 0; i < count; i += 8) {
    H8 h{};
    if (i + 8 <= count) h = load<H8>(in + 2 * i);
    else std::memcpy(&h, in + 2 * i, 2 * (count - i));
    U8 wide = __builtin_convertvector(h, U8);
    wide = bits(wide);
    std::memcpy(out + i, &wide, sizeof wide);
  }
}

CKPT_INLINE void widen_bfloat(const std::byte* in, size_t count, float* out) {
  widen_floats(in, count, out, [](const U8& h) __attribute__((always_inline)) { return h << 16; });
}

CKPT_INLINE void widen_half(const std::byte* in, size_t count, float* out) {
  widen_floats(in, count, out, [](const U8& h) __attribute__((always_inline)) {
    const U8 exponent = h & 0x7c00;
    const U8 normal = ((h & 0x7fff) << 13) + (exponent == 0x7c00 ? U8{} + 0x70000000 : U8{} + 0x38000000);
    const F8 tiny = __builtin_convertvector(load<I8>(&h) & 0x3ff, F8) * 0x1p-24f;  // no slow subnormal float
    return (exponent == 0 ? load<U8>(&tiny) : normal) | ((h & 0x8000) << 16);
  });
}

template <class T, class Out>
CKPT_INLINE void widen(const std::byte* in, size_t count, Out* out) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + sizeof(T) * i, sizeof(T));
    out[i] = static_cast<Out>(value);
  }
}

/// Of pairs of floats. In double: the squares cannot overflow.
CKPT_INLINE void magnitudes(const float* parts, size_t count, double* out) {
  for (size_t i = 0; i < count; ++i) {
    const double re = parts[2 * i], im = parts[2 * i + 1];
    out[i] = std::sqrt(re * re + im * im);
  }
}

CKPT_INLINE BlockSums scan_any(tensor::DType dtype, ByteSpan elements, double shift) {
  const size_t count = elements.size() / tensor::item_size(dtype);
  const std::byte* in = elements.data();
  alignas(64) float floats[2 * kBlockElements];
  alignas(64) double doubles[kBlockElements];
  switch (dtype) {
    case tensor::DType::kFloat32: widen<float>(in, count, floats); return scan(floats, count, shift);
    case tensor::DType::kBfloat16: widen_bfloat(in, count, floats); return scan(floats, count, shift);
    case tensor::DType::kFloat16: widen_half(in, count, floats); return scan(floats, count, shift);
    case tensor::DType::kUint16: widen<uint16_t>(in, count, floats); return scan(floats, count, shift);
    case tensor::DType::kInt16: widen<int16_t>(in, count, floats); return scan(floats, count, shift);
    case tensor::DType::kFloat64: widen<double>(in, count, doubles); return scan(doubles, count, shift);
    case tensor::DType::kUint32: widen<uint32_t>(in, count, doubles); return scan(doubles, count, shift);
    case tensor::DType::kInt32: widen<int32_t>(in, count, doubles); return scan(doubles, count, shift);
    case tensor::DType::kUint64: widen<uint64_t>(in, count, doubles); return scan(doubles, count, shift);
    case tensor::DType::kInt64: widen<int64_t>(in, count, doubles); return scan(doubles, count, shift);
    case tensor::DType::kComplex32:
      widen_half(in, 2 * count, floats);
      magnitudes(floats, count, doubles);
      return scan(doubles, count, shift);
    case tensor::DType::kComplex64:
      widen<float>(in, 2 * count, floats);
      magnitudes(floats, count, doubles);
      return scan(doubles, count, shift);
    default: tensor::to_doubles(dtype, elements, doubles); return scan(doubles, count, shift);
  }
}

[[gnu::target("avx2,fma")]] BlockSums scan_avx2(tensor::DType dtype, ByteSpan elements, double shift) {
  return scan_any(dtype, elements, shift);
}
BlockSums scan_base(tensor::DType dtype, ByteSpan elements, double shift) { return scan_any(dtype, elements, shift); }

}  // namespace

BlockSums scan_block(tensor::DType dtype, ByteSpan elements, double shift) {
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? scan_avx2(dtype, elements, shift) : scan_base(dtype, elements, shift);
}

}  // namespace ckpt::model
