#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>

#include "lib/store/chunk.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

Bytes block_of(const std::function<void(Rng&, Bytes&)>& fill) {
  Bytes out(kBlockSize);
  Rng rng(1);
  fill(rng, out);
  return out;
}

bool comes_back(const Bytes& data) {
  Compressor compressor;
  ByteSpan frame = compressor.try_compress(data);
  if (frame.empty() || frame.size() > data.size() * 7 / 8) return false;
  Bytes again(data.size());
  return decompress(frame, again) && again == data;
}

}  // namespace

TEST_CASE("chunks: a page is zero only if every byte is") {
  Bytes page = zero_page();
  CHECK(is_zero_page(page.data()));
  for (size_t at = 0; at < kPageSize; at += 61) {
    page[at] = std::byte{1};
    CHECK_FALSE(is_zero_page(page.data()));
    page[at] = std::byte{0};
  }
  page.back() = std::byte{128};
  CHECK_FALSE(is_zero_page(page.data()));
}

TEST_CASE("chunks: zero pages are found and the others packed, whatever the mask") {
  Bytes data;
  for (uint64_t i = 0; i < 5; ++i) {
    Bytes page = i == 1 || i == 4 ? zero_page() : random_page(i);
    data.insert(data.end(), page.begin(), page.end());
  }
  const uint16_t mask = 0b1001'0000'0010'0011;  // pages 0 1 5 12 15; the second and the last are zero
  CHECK(find_zero_pages(mask, data) == 0b1000'0000'0000'0010);
  Bytes packed(3 * kPageSize);
  pack_pages(mask, data, 0b0001'0000'0010'0001, packed.data());
  CHECK(std::equal(packed.begin(), packed.begin() + kPageSize, random_page(0).begin()));
  CHECK(std::equal(packed.begin() + kPageSize, packed.begin() + 2 * kPageSize, random_page(2).begin()));
  CHECK(std::equal(packed.begin() + 2 * kPageSize, packed.end(), random_page(3).begin()));
}

TEST_CASE("chunks: what compresses is compressed: text, pointers, skewed bytes, repeats of noise") {
  CHECK(comes_back(block_of([](Rng&, Bytes& out) {
    for (size_t i = 0; i < out.size(); i += kPageSize) std::memcpy(out.data() + i, text_page(i).data(), kPageSize);
  })));
  CHECK(comes_back(block_of([](Rng& rng, Bytes& out) {
    for (size_t i = 0; i < out.size(); i += 8) {
      uint64_t pointer = 0x7f1234000000 + rng() % (1 << 24);
      std::memcpy(out.data() + i, &pointer, 8);
    }
  })));
  CHECK(comes_back(block_of([](Rng& rng, Bytes& out) {  // int8 weights: no repeats, few values
    std::normal_distribution<double> gauss(0, 12);
    for (std::byte& b : out) b = static_cast<std::byte>(static_cast<int>(std::lround(gauss(rng))));
  })));
  CHECK(comes_back(block_of([](Rng& rng, Bytes& out) {
    std::array<uint64_t, 16> phrase;
    for (uint64_t& word : phrase) word = rng();
    for (size_t i = 0; i < out.size(); i += sizeof phrase) std::memcpy(out.data() + i, phrase.data(), sizeof phrase);
  })));
}

TEST_CASE("chunks: what does not save a quarter stays raw: noise, float32 and bfloat16 weights") {
  CHECK_FALSE(comes_back(block_of([](Rng& rng, Bytes& out) {
    for (std::byte& b : out) b = static_cast<std::byte>(rng());
  })));
  CHECK_FALSE(comes_back(block_of([](Rng& rng, Bytes& out) {
    std::normal_distribution<float> gauss(0, 0.02f);
    for (size_t i = 0; i < out.size(); i += 4) {
      float weight = gauss(rng);
      std::memcpy(out.data() + i, &weight, 4);
    }
  })));
  CHECK_FALSE(comes_back(block_of([](Rng& rng, Bytes& out) {
    std::normal_distribution<float> gauss(0, 0.02f);
    for (size_t i = 0; i < out.size(); i += 2) {
      float weight = gauss(rng);
      std::memcpy(out.data() + i, reinterpret_cast<const char*>(&weight) + 2, 2);
    }
  })));
}

TEST_CASE("chunks: after much that does not compress, what does is found again within four blocks") {
  Compressor compressor;
  const Bytes text = text_page(1);
  for (size_t noise : {5, 16, 17, 18, 19, 20, 100, 1000}) {
    for (size_t i = 0; i < noise; ++i) CHECK(compressor.try_compress(random_page(i)).empty());
    size_t missed = 0;
    while (compressor.try_compress(text).empty()) REQUIRE(++missed < 4);
    if (noise < 16) CHECK(missed == 0);
    CHECK_FALSE(compressor.try_compress(text).empty());
  }
}

TEST_CASE("chunks: a frame of another size or of garbage is not decoded") {
  Bytes data = text_page(1);
  Compressor compressor;
  ByteSpan frame = compressor.try_compress(data);
  REQUIRE_FALSE(frame.empty());
  Bytes out(kPageSize), longer(kPageSize + 1), shorter(kPageSize - 1);
  CHECK(decompress(frame, out));
  CHECK_FALSE(decompress(frame, longer));
  CHECK_FALSE(decompress(frame, shorter));
  CHECK_FALSE(decompress(frame.first(frame.size() - 1), out));
  CHECK_FALSE(decompress(random_page(1), out));
  CHECK_FALSE(decompress({}, out));
}
