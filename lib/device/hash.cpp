#include "lib/device/hash.h"

#include <cstring>

#include "lib/base/result.h"

namespace ckpt::device {

namespace {

struct Lanes {
  alignas(64) uint64_t a[kHashLanes], b[kHashLanes];
};

// Inlined into functions for several instruction sets; each loop over lanes becomes vectors there.
#define CKPT_INLINE inline __attribute__((always_inline))

CKPT_INLINE void seed(Lanes& lanes) {
  for (uint32_t i = 0; i < kHashLanes; ++i) hash_seed(i, lanes.a[i], lanes.b[i]);
}

CKPT_INLINE void take_row(Lanes& lanes, const std::byte* row) {
  const auto* x = reinterpret_cast<const uint64_t*>(row);
  for (uint32_t i = 0; i < kHashLanes; ++i) {
    uint64_t low, high;
    std::memcpy(&low, x + i, 8);
    std::memcpy(&high, x + kHashLanes + i, 8);
    hash_step(lanes.a[i], lanes.b[i], low, high);
  }
}

/// Nothing happens where there is none.
CKPT_INLINE void prefetch_row(const std::byte* row) {
  const auto at = reinterpret_cast<uintptr_t>(row);
  for (uint32_t i = 0; i < kHashRow; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i));
}

CKPT_INLINE ChunkHash finish(Lanes& lanes, size_t bytes) {
  for (uint32_t s = kHashLanes / 2; s >= 8; s /= 2) {
    for (uint32_t i = 0; i < s; ++i) hash_step(lanes.a[i], lanes.b[i], lanes.a[i + s], lanes.b[i + s]);
  }
  for (uint32_t s = 4; s != 0; s /= 2) {
    for (uint32_t i = 0; i < s; ++i) hash_step(lanes.a[i], lanes.b[i], lanes.a[i + s], lanes.b[i + s]);
  }
  return hash_finish(lanes.a[0], lanes.b[0], bytes);
}

/// `to` null: hash alone. What is hashed is the copy, since `from` may change under the reader; it is made in pieces
/// that stay in a cache (whole rows one by one take twice as long).
constexpr size_t kPiece = 8 * kHashRow;

CKPT_INLINE ChunkHash run(std::byte* to, const std::byte* from, size_t bytes) {
  Lanes lanes;
  seed(lanes);
  for (size_t piece = 0; piece < bytes; piece += kPiece) {
    const size_t size = bytes - piece < kPiece ? bytes - piece : kPiece;
    const std::byte* rows = from + piece;
    if (to != nullptr) {
      std::memcpy(to + piece, rows, size);
      rows = to + piece;
      asm volatile("" ::: "memory");  // what follows reads the copy, not once more the source
    }
    for (size_t at = 0; at < size; at += kHashRow) {
      // A row is a page, where the processor's own prefetching begins anew: a row ahead is asked for (18 GB/s instead
      // of 10).
      if (to == nullptr) prefetch_row(rows + at + kHashRow);
      take_row(lanes, rows + at);
    }
  }
  return finish(lanes, bytes);
}

using Run = ChunkHash (*)(std::byte*, const std::byte*, size_t);
ChunkHash run_plain(std::byte* to, const std::byte* from, size_t bytes) { return run(to, from, bytes); }

#if defined(__x86_64__)
#define CKPT_AVX512 "avx512f,avx512dq,avx512vl,prefer-vector-width=512"
__attribute__((target("avx2"))) ChunkHash run_avx2(std::byte* to, const std::byte* from, size_t bytes) {
  return run(to, from, bytes);
}
__attribute__((target(CKPT_AVX512))) ChunkHash run_avx512(std::byte* to, const std::byte* from, size_t bytes) {
  return run(to, from, bytes);
}

Run choose() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return run_avx512;
  return __builtin_cpu_supports("avx2") ? run_avx2 : run_plain;
}
#else
Run choose() { return run_plain; }
#endif

Run chosen() {
  static const Run kRun = choose();
  return kRun;
}

}  // namespace

ChunkHash hash_chunk(const void* data, size_t bytes) {
  CKPT_ASSERT(bytes != 0 && bytes % kHashRow == 0);
  return chosen()(nullptr, static_cast<const std::byte*>(data), bytes);
}

ChunkHash copy_and_hash_chunk(void* to, const void* from, size_t bytes) {
  CKPT_ASSERT(bytes != 0 && bytes % kHashRow == 0);
  return chosen()(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
}

}  // namespace ckpt::device
