#include "lib/store/chunk.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/store/image.h"

namespace ckpt::store {

namespace {

constexpr size_t kSampleSize = 4096;
constexpr size_t kSamplePieces = 4;
constexpr unsigned kInVain = 16;
constexpr unsigned kProbeEvery = 4;

/// Bytes that an order-0 entropy coder would need for `sample`.
double entropy_bytes(ByteSpan sample) {
  // Four tables: equal bytes in a row would otherwise wait for each other's increment.
  std::array<std::array<uint16_t, 256>, 4> count{};
  for (size_t i = 0; i + 4 <= sample.size(); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) ++count[lane][static_cast<uint8_t>(sample[i + lane])];
  }
  // sum n*log2(total/n), from a table: a logarithm for each of 256 counts would cost more than the counting.
  static const std::vector<float> kNLog2N = [] {
    std::vector<float> table(kSampleSize + 1);
    for (size_t n = 2; n <= kSampleSize; ++n) table[n] = static_cast<float>(n) * std::log2(static_cast<float>(n));
    return table;
  }();
  float sum = 0;
  for (size_t b = 0; b < 256; ++b) sum += kNLog2N[size_t{count[0][b]} + count[1][b] + count[2][b] + count[3][b]];
  return static_cast<double>(kNLog2N[sample.size()] - sum) / 8;
}

/// What saves less is not worth it: bfloat16 weights shrink by 22 percent, which costs 1.0 s of CPU a GiB here and half
/// of that again at every restore, where copying the bytes takes 0.45 s.
bool saves_a_quarter(double compressed, size_t size) { return compressed <= static_cast<double>(size) * 3 / 4; }

struct DecompressionContext {
  ZSTD_DCtx* ctx = ZSTD_createDCtx();
  ~DecompressionContext() { ZSTD_freeDCtx(ctx); }
};

}  // namespace

bool is_zero_page(const std::byte* page) {
  constexpr size_t kStep = 256;
  for (size_t i = 0; i < kPageSize; i += kStep) {
    std::array<uint64_t, kStep / 8> words;
    std::memcpy(words.data(), page + i, kStep);
    uint64_t any = 0;
    for (uint64_t w : words) any |= w;
    if (any != 0) return false;
  }
  return true;
}

uint16_t find_zero_pages(uint16_t mask, ByteSpan data) {
  unsigned zero = 0;
  const std::byte* page = data.data();
  for (unsigned rest = mask; rest != 0; rest &= rest - 1, page += kPageSize) {
    if (is_zero_page(page)) zero |= rest & (~rest + 1);
  }
  return static_cast<uint16_t>(zero);
}

void pack_pages(uint16_t mask, ByteSpan data, uint16_t keep, std::byte* out) {
  for (unsigned rest = keep; rest != 0; rest &= rest - 1, out += kPageSize) {
    unsigned page = static_cast<unsigned>(std::countr_zero(rest));
    std::memcpy(out, data.data() + page_rank(mask, page) * kPageSize, kPageSize);
  }
}

struct Compressor::State {
  ZSTD_CCtx* ctx = ZSTD_createCCtx();
  std::vector<std::byte> out = std::vector<std::byte>(ZSTD_compressBound(kBlockSize));
  std::array<std::byte, kSampleSize> sample;
  unsigned in_vain = 0;  ///< chunks in a row that did not pay, up to a bit more than kInVain
  ~State() { ZSTD_freeCCtx(ctx); }

  /// zstd's size of `data`, or a size that saves nothing if it declines.
  size_t compress(ByteSpan data, int level) {
    size_t n = ZSTD_compressCCtx(ctx, out.data(), out.size(), data.data(), data.size(), level);
    return ZSTD_isError(n) ? data.size() : n;
  }

  ByteSpan take_sample(ByteSpan data) {
    if (data.size() <= kSampleSize) return data;
    constexpr size_t kPiece = kSampleSize / kSamplePieces;
    for (size_t i = 0; i < kSamplePieces; ++i) {
      size_t from = (data.size() - kPiece) / (kSamplePieces - 1) * i;
      std::memcpy(sample.data() + i * kPiece, data.data() + from, kPiece);
    }
    return sample;
  }

  /// Skewed byte values, or repeats as a fast level of zstd (which codes no literals) finds them.
  bool may_pay(ByteSpan data) {
    ByteSpan probe = take_sample(data);
    if (saves_a_quarter(entropy_bytes(probe), probe.size())) return true;
    return saves_a_quarter(static_cast<double>(compress(probe, -5)), probe.size());
  }
};

Compressor::Compressor() : state_(std::make_unique<State>()) {}
Compressor::~Compressor() = default;
Compressor::Compressor(Compressor&&) noexcept = default;
Compressor& Compressor::operator=(Compressor&&) noexcept = default;

ByteSpan Compressor::try_compress(ByteSpan data) {
  CKPT_ASSERT(data.size() <= kBlockSize);
  State& s = *state_;
  if (s.ctx == nullptr) return {};
  if (s.in_vain >= kInVain && ++s.in_vain % kProbeEvery != 0) return {};
  size_t n = s.may_pay(data) ? s.compress(data, 1) : data.size();
  if (!saves_a_quarter(static_cast<double>(n), data.size())) {
    s.in_vain = std::min(s.in_vain + 1, kInVain + kProbeEvery);
    return {};
  }
  s.in_vain = 0;
  return ByteSpan(s.out).first(n);
}

bool decompress(ByteSpan frame, MutableByteSpan out) {
  thread_local DecompressionContext context;
  if (context.ctx == nullptr) return false;
  return ZSTD_decompressDCtx(context.ctx, out.data(), out.size(), frame.data(), frame.size()) == out.size();
}

}  // namespace ckpt::store
