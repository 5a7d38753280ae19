// CRC-32C by the instruction that processors have for it since SSE 4.2, eight bytes at a time; by a table elsewhere.
#include <immintrin.h>

#include <array>

#include "lib/base/digest.h"

namespace ckpt {

namespace {

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> out{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
    out[i] = crc;
  }
  return out;
}();

uint32_t by_table(uint32_t crc, const std::byte* p, size_t n) {
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const std::byte* p, size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(static_cast<uint32_t>(wide), p, n);
}

}  // namespace

uint32_t crc32c(uint32_t crc, ByteSpan data) {
  static const bool kHas = __builtin_cpu_supports("sse4.2");
  return ~(kHas ? by_instruction(~crc, data.data(), data.size()) : by_table(~crc, data.data(), data.size()));
}

}  // namespace ckpt
