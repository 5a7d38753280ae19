// The hash of a chunk of device memory: 128 bits, one definition for the GPU kernels and the CPU. It finds changes and
// repeats; it is no defence against someone who looks for collisions, so what is stored is checked by the store's own
// hash.
//
// A chunk is a multiple of 4 KiB, a row of 512 little-endian words. Lane i of 256 takes words i and i+256 of each row,
// in order: on a GPU 128 threads with two neighbouring lanes each load 16 bytes at a time, on a CPU the lanes are
// vectors.
//
//   lane i:    (a, b) = hash_seed(i);  for each row r: hash_step(a, b, word[512 r + i], word[512 r + 256 + i])
//   the lanes: for s = 128, 64, .. 1: for i < s: hash_step(a[i], b[i], a[i + s], b[i + s])
//   the hash:  hash_finish(a[0], b[0], bytes)
//
// A step is a bijection of the state for given words, and of the words for a given state: a single changed word always
// changes its lane, and each word reaches both halves. The address of a chunk does not enter: equal chunks are equal.
//
// Test vectors (lo, hi), computed from the definition word by word in tests/unit/device/hash_test.cpp:
//   64 KiB of zeros               80defe34a6ba6f1b, e1d6b0edf313ca4b
//   64 KiB, word i = i            aa13d02a8893840e, 1cd717fdccf16344
//   2 MiB, word i = i * kHashP1   a6e569cf15745c2f, 8e1f9fa3f0614fdb
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define CKPT_HD __host__ __device__ inline
#else
#define CKPT_HD inline
#endif

namespace ckpt::device {

/// As it lies in memory, on either side.
struct ChunkHash {
  uint64_t lo = 0, hi = 0;
};
CKPT_HD bool operator==(const ChunkHash& a, const ChunkHash& b) { return a.lo == b.lo && a.hi == b.hi; }
CKPT_HD bool operator!=(const ChunkHash& a, const ChunkHash& b) { return !(a == b); }

constexpr uint64_t kMinChunk = 64 << 10, kMaxChunk = 2 << 20;  ///< chunk sizes are powers of two between them
constexpr uint32_t kHashLanes = 256;
constexpr uint32_t kHashRowWords = 2 * kHashLanes;
constexpr uint32_t kHashRow = kHashRowWords * 8;  ///< bytes
constexpr uint64_t kHashP1 = 0x9E3779B185EBCA87, kHashP2 = 0xC2B2AE3D27D4EB4F, kHashP3 = 0x165667B19E3779F9;

CKPT_HD uint64_t hash_swap(uint64_t v) { return v << 32 | v >> 32; }

CKPT_HD void hash_seed(uint32_t lane, uint64_t& a, uint64_t& b) {
  a = (lane + 1) * kHashP3;
  b = ~a * kHashP1;
}

/// The product of a word's halves, which are 32 bits each.
CKPT_HD uint64_t hash_product(uint64_t v) { return (v & 0xffffffff) * (v >> 32); }

/// Multiplying by a constant keeps a difference in the top bit one in the top bit, so that the signs of a few
/// neighbouring floats could cancel each other: what the products of the halves add depends on the words themselves.
CKPT_HD void hash_step(uint64_t& a, uint64_t& b, uint64_t x, uint64_t y) {
  x += hash_product(y ^ kHashP3);
  y += hash_product(x ^ kHashP1);
  a = (a ^ x) * kHashP1;
  b = (b ^ y) * kHashP2;
  a = hash_swap(a) + b;
  b = hash_swap(b) ^ a;
}

CKPT_HD uint64_t hash_avalanche(uint64_t v) {
  v ^= v >> 33;
  v *= kHashP2;
  v ^= v >> 29;
  v *= kHashP3;
  return v ^ v >> 32;
}

CKPT_HD ChunkHash hash_finish(uint64_t a, uint64_t b, uint64_t bytes) {
  hash_step(a, b, bytes, kHashP3);
  const uint64_t lo = hash_avalanche(a + hash_swap(b));
  return ChunkHash{lo, hash_avalanche(b ^ lo * kHashP1)};
}

/// On the CPU. `bytes`: a multiple of kHashRow, not 0. Any alignment. 64 KiB that are cached take 1.1 us, from
/// memory 3.5.
ChunkHash hash_chunk(const void* data, size_t bytes);
/// The same, and `to` gets exactly the bytes that were hashed, each read once, while somebody writes `from`.
ChunkHash copy_and_hash_chunk(void* to, const void* from, size_t bytes);

}  // namespace ckpt::device
