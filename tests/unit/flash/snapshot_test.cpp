#include "lib/flash/client/snapshot.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>

using namespace ckpt::flash;

namespace {

constexpr size_t kBytes = 24 << 20;

struct Memory {
  unsigned char* data;
  size_t size;
  explicit Memory(size_t bytes) : size(bytes) {
    data =
        static_cast<unsigned char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(data != MAP_FAILED);
  }
  ~Memory() { ::munmap(data, size); }
};

}  // namespace

TEST_CASE("snapshot: what is written behind its back is not in it, pages that nobody had touched included") {
  Memory from(kBytes), to(kBytes + 100);
  for (size_t i = 0; i < kBytes / 2; ++i)
    from.data[i] = static_cast<unsigned char>(i % 251);  // the rest stays untouched
  const size_t begin = 77, bytes = kBytes - 200;         // neither end at a page
  bool done = false;
  auto snapshot = Snapshot::begin({{to.data + 3, from.data + begin, bytes}}, 2, [&] { done = true; });
  if (!snapshot) {
    MESSAGE("skipped: snapshot: this kernel or user has no userfaultfd that protects untouched pages");
    return;
  }
  CHECK(snapshot->protected_bytes() > bytes - 2 * 4096);
  std::memset(from.data, 255, kBytes);
  snapshot->wait();
  CHECK(done);
  CHECK(snapshot->finished());
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) {
    const size_t at = begin + i;
    wrong += to.data[3 + i] != (at < kBytes / 2 ? at % 251 : 0);
  }
  CHECK(wrong == 0);
  CHECK(from.data[kBytes - 1] == 255);
  snapshot.reset();
  from.data[5] = 1;  // nothing is protected any more
}

TEST_CASE("snapshot: small parts are copied at once, and two parts over the same memory are both right") {
  Memory from(2 << 20), to(8 << 20);
  std::iota(from.data, from.data + from.size, static_cast<unsigned char>(0));
  auto snapshot = Snapshot::begin({{to.data, from.data, from.size},
                                   {to.data + (4 << 20), from.data + 8, from.size - 8},
                                   {to.data + (7 << 20), from.data + 5, 1000}},
                                  1, [] {});
  if (!snapshot) return;
  std::memset(from.data, 9, from.size);
  snapshot->wait();
  CHECK(to.data[1'000'000] == static_cast<unsigned char>(1'000'000));
  CHECK(to.data[(4 << 20) + 1'000'000] == static_cast<unsigned char>(1'000'008));
  CHECK(to.data[(7 << 20) + 999] == static_cast<unsigned char>(1004));
}
