#include "lib/flash/client/copy.h"

#include <algorithm>
#include <cstring>

#include "lib/base/threads.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ckpt::flash {

namespace {

constexpr uint64_t kChunk = uint64_t{4} << 20;

/// Past the caches: what is written is not read again soon, and no line is fetched only to be overwritten.
void copy_past_caches(std::byte* to, const std::byte* from, uint64_t bytes) {
#ifdef __SSE2__
  const uint64_t head = std::min<uint64_t>(bytes, (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void copy_all(const std::vector<CopyPart>& parts, unsigned threads) {
  std::vector<CopyPart> chunks;
  for (const CopyPart& part : parts) {
    for (uint64_t at = 0; at < part.bytes; at += kChunk) {
      chunks.push_back({static_cast<std::byte*>(part.to) + at, static_cast<const std::byte*>(part.from) + at,
                        std::min(kChunk, part.bytes - at)});
    }
  }
  in_threads(threads, chunks.size(), [&](size_t i) {
    const CopyPart& chunk = chunks[i];
    if (chunk.bytes < 4096)
      std::memcpy(chunk.to, chunk.from, chunk.bytes);
    else
      copy_past_caches(static_cast<std::byte*>(chunk.to), static_cast<const std::byte*>(chunk.from), chunk.bytes);
  });
}

}  // namespace ckpt::flash
