#include "lib/remote/cached_object.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace ckpt;
using namespace ckpt::remote;

namespace {

/// An object whose byte at `i` is a function of i; requests are counted, and one of them may fail.
class Bytes final : public Backend {
 public:
  Result<std::vector<Object>> list(size_t) override { return std::vector<Object>(); }
  Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) override {
    ++requests, bytes += out.size();
    if (offset + out.size() > object.size) return fail(Code::kBug, "", "beyond the end");
    if (failing.exchange(false)) return fail(Code::kIo, object.name, "broken");
    for (size_t i = 0; i < out.size(); ++i) out[i] = at(offset + i);
    return {};
  }
  static std::byte at(uint64_t i) { return static_cast<std::byte>(i * 31 + (i >> 13)); }
  std::atomic<uint64_t> requests = 0, bytes = 0;
  std::atomic<bool> failing = false;
};

bool right(uint64_t offset, ByteSpan bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != Bytes::at(offset + i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("blocks of objects: small reads share a request, the last block is short, long reads pass the cache by") {
  Bytes backend;
  BlockCache cache(backend);
  const Object object{"o", BlockCache::kBlock * 5 + 100, ""};
  std::vector<std::byte> small(1000), rest(150);
  for (uint64_t at : {0, 5000, 100'000}) {
    CHECK(cache.read(0, object, at, small));
    CHECK(right(at, small));
  }
  CHECK(backend.requests == 1);
  CHECK(cache.read(0, object, object.size - 150, rest));
  CHECK(right(object.size - 150, rest));
  std::vector<std::byte> all(object.size - 3);
  CHECK(cache.read(0, object, 3, all));
  CHECK(right(3, all));
}

TEST_CASE("blocks of objects: front to back most blocks are there before they are asked for, each once") {
  Bytes backend;
  const Object object{"o", BlockCache::kBlock * 200 + 1, ""};
  {
    BlockCache cache(backend);
    std::vector<std::byte> part(512 << 10);
    for (uint64_t at = 0; at + part.size() <= object.size; at += part.size()) {
      REQUIRE(cache.read(0, object, at, part));
      REQUIRE(right(at, part));
    }
  }
  CHECK(backend.requests <= 201);
  CHECK(backend.bytes <= object.size);
}

TEST_CASE("blocks of objects: two who read one object front to back, in turn, are both read ahead of") {
  Bytes backend;
  constexpr uint64_t kHalf = 100, kRead = 40;
  const Object object{"o", BlockCache::kBlock * 2 * kHalf, ""};
  {
    BlockCache cache(backend);
    std::vector<std::byte> part(BlockCache::kBlock);
    for (uint64_t i = 0; i < kRead; ++i) {
      for (uint64_t at : {i * part.size(), (kHalf + i) * part.size()}) {
        REQUIRE(cache.read(0, object, at, part));
        REQUIRE(right(at, part));
      }
    }
    // What has not begun when the cache goes is dropped.
    for (int i = 0; i < 10'000 && backend.requests <= 2 * kRead + BlockCache::kThreads; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(backend.requests > 2 * kRead + BlockCache::kThreads);
  CHECK(backend.requests <= 2 * (kRead + BlockCache::kMostAhead));
}

TEST_CASE("blocks of objects: what failed is told, and asked for again by the next reader") {
  Bytes backend;
  BlockCache cache(backend);
  const Object object{"o", 5000, ""};
  std::vector<std::byte> part(10);
  backend.failing = true;
  auto failed = cache.read(0, object, 7, part);
  REQUIRE(!failed);
  CHECK(failed.error().code == Code::kIo);
  CHECK(cache.read(0, object, 7, part));
  CHECK(right(7, part));
}

TEST_CASE("blocks of objects: several threads, several objects") {
  Bytes backend;
  BlockCache cache(backend);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const Object object{"o" + std::to_string(t % 3), BlockCache::kBlock * 40, ""};
      std::vector<std::byte> part(3000);
      for (uint64_t i = 0; i < 300; ++i) {
        const uint64_t at = i * 7'919'111 * static_cast<uint64_t>(t + 1) % (object.size - part.size());
        if (!cache.read(static_cast<size_t>(t % 3), object, at, part) || !right(at, part)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
