#include "lib/device/hash.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

using namespace ckpt::device;

namespace {

using Words = std::vector<uint64_t>;

/// The definition of hash.h, word by word.
ChunkHash by_definition(const Words& words) {
  std::vector<uint64_t> a(kHashLanes), b(kHashLanes);
  for (uint32_t i = 0; i < kHashLanes; ++i) {
    hash_seed(i, a[i], b[i]);
    for (size_t row = 0; row < words.size(); row += kHashRowWords)
      hash_step(a[i], b[i], words[row + i], words[row + kHashLanes + i]);
  }
  for (uint32_t s = kHashLanes / 2; s != 0; s /= 2) {
    for (uint32_t i = 0; i < s; ++i) hash_step(a[i], b[i], a[i + s], b[i + s]);
  }
  return hash_finish(a[0], b[0], words.size() * 8);
}

Words noise(uint64_t seed, size_t bytes) {
  std::mt19937_64 rng(seed);
  Words out(bytes / 8);
  for (uint64_t& word : out) word = rng();
  return out;
}
ChunkHash hash(const Words& words) { return hash_chunk(words.data(), words.size() * 8); }

}  // namespace

TEST_CASE("chunk hash: the test vectors of the header") {
  Words words(kMinChunk / 8);
  CHECK(hash(words) == ChunkHash{0x80defe34a6ba6f1b, 0xe1d6b0edf313ca4b});
  for (size_t i = 0; i < words.size(); ++i) words[i] = i;
  CHECK(hash(words) == ChunkHash{0xaa13d02a8893840e, 0x1cd717fdccf16344});
  words.resize(kMaxChunk / 8);
  for (size_t i = 0; i < words.size(); ++i) words[i] = i * kHashP1;
  CHECK(hash(words) == ChunkHash{0xa6e569cf15745c2f, 0x8e1f9fa3f0614fdb});
}

TEST_CASE("chunk hash: what is fast gives what the definition says, at any alignment") {
  std::mt19937_64 rng(3);
  for (int run = 0; run < 40; ++run) {
    const size_t bytes = kHashRow * (1 + rng() % 40);
    const Words words = noise(rng(), bytes);
    const ChunkHash expected = by_definition(words);
    CHECK(hash(words) == expected);
    std::vector<std::byte> shifted(bytes + 64), copied(bytes + 64);
    std::byte* from = shifted.data() + rng() % 64;
    std::byte* to = copied.data() + rng() % 64;
    std::memcpy(from, words.data(), bytes);
    CHECK(hash_chunk(from, bytes) == expected);
    CHECK(copy_and_hash_chunk(to, from, bytes) == expected);
    CHECK(std::memcmp(to, from, bytes) == 0);
  }
}

TEST_CASE("chunk hash: every single bit counts") {
  Words words = noise(4, kHashRow * 2);
  const ChunkHash before = hash(words);
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t bit = uint64_t{1} << (i * 7 + i / 64) % 64;
    words[i] ^= bit;
    const ChunkHash after = hash(words);
    words[i] ^= bit;
    REQUIRE(after.lo != before.lo);
    REQUIRE(after.hi != before.hi);
  }
}

TEST_CASE("chunk hash: what a program does to an array is seen") {
  // Six words of two lanes in three rows: signs of floats, words one up and one down; differences that cancel in sums,
  // in exclusive ors, and behind a multiplication.
  const uint64_t high = uint64_t{1} << 63, low = uint64_t{1} << 31;
  const uint64_t changes[] = {0, high, low, high | low, 1, ~uint64_t{0}};
  std::mt19937_64 rng(5);
  for (const uint64_t fill : {uint64_t{0}, uint64_t{0x3f8000003f800000}, uint64_t{1}}) {
    Words words = fill == 1 ? noise(6, kHashRow * 3) : Words(kHashRowWords * 3, fill);
    const size_t lane = rng() % kHashLanes;
    const size_t place[] = {lane,
                            lane + kHashLanes,
                            lane + 2 * kHashLanes,
                            lane + 3 * kHashLanes,
                            lane + 4 * kHashLanes,
                            lane + 5 * kHashLanes};
    std::set<std::pair<uint64_t, uint64_t>> seen;
    const int all = 6 * 6 * 6 * 6 * 6 * 6;
    for (int choice = 0; choice < all; ++choice) {
      Words changed = words;
      for (int k = 0, left = choice; k < 6; ++k, left /= 6) {
        const uint64_t change = changes[left % 6];
        changed[place[k]] = left % 6 < 4 ? words[place[k]] ^ change : words[place[k]] + change;
      }
      const ChunkHash h = hash(changed);
      seen.insert({h.lo, h.hi});
    }
    CHECK(seen.size() == size_t{all});
  }
}

TEST_CASE("chunk hash: the length counts, the place does not") {
  const Words zeros(kMaxChunk / 8);
  std::set<uint64_t> seen;
  for (size_t rows = 1; rows <= kMaxChunk / kHashRow; rows *= 2)
    seen.insert(hash_chunk(zeros.data(), rows * kHashRow).lo);
  CHECK(seen.size() == 10);
}
