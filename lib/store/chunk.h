// The bytes of one block between memory and disk: zero pages found, pages packed, compression tried where it may pay.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::store {

/// How a chunk lies in a pages file; the number is the one on disk.
enum class Codec : uint8_t {
  kRaw = 0,   ///< as it is, page-aligned
  kZstd = 1,  ///< one zstd frame
};

/// Without std::popcount: for any x86-64 that is a call, and there is one for each block of an image.
constexpr unsigned page_count(uint16_t mask) {
  unsigned sums = mask - (mask >> 1 & 0x5555u);
  sums = (sums & 0x3333u) + (sums >> 2 & 0x3333u);
  sums = (sums + (sums >> 4)) & 0x0f0fu;
  return (sums + (sums >> 8)) & 0x1fu;
}
static_assert(page_count(0) == 0 && page_count(0xffff) == 16 && page_count(0x8421) == 4 && page_count(0x7ffe) == 14);
/// How many pages of `mask` lie before page `page`: its position in packed data.
inline unsigned page_rank(uint16_t mask, unsigned page) {
  return page_count(static_cast<uint16_t>(mask & ((1u << page) - 1)));
}

/// Is a whole page (4096 bytes) zero?
bool is_zero_page(const std::byte* page);
/// The pages of `mask` that are zero in `data`, which holds them packed.
uint16_t find_zero_pages(uint16_t mask, ByteSpan data);
/// Copies the pages of `keep`, a subset of `mask`, out of `data` (the pages of `mask`, packed) to `out`, packed.
void pack_pages(uint16_t mask, ByteSpan data, uint16_t keep, std::byte* out);

/// zstd level 1 with its working memory. For one thread at a time.
class Compressor {
 public:
  Compressor();
  ~Compressor();
  Compressor(Compressor&&) noexcept;
  Compressor& operator=(Compressor&&) noexcept;

  /// The compressed chunk, valid until the next call; empty where it would not save a quarter. Data that a sample of 4
  /// KiB shows to be incompressible costs the sample only (3 us instead of the 54 us that 64 KiB of float32 weights
  /// take: 0.05 s a GiB); after 16 such in a row only every fourth is looked at (0.013 s a GiB), until one pays.
  ByteSpan try_compress(ByteSpan data);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Decodes one zstd frame into exactly `out`. Hostile input is safe; false if it is not a frame of that size.
/// Thread-safe.
bool decompress(ByteSpan frame, MutableByteSpan out);

}  // namespace ckpt::store
