#include <doctest/doctest.h>

#include "lib/base/bytes.h"
#include "lib/base/digest.h"
#include "lib/store/job_common.h"

using namespace ckpt;
using namespace ckpt::store;

namespace {

uint64_t hash_of(uint64_t number) { return xxh3_128(std::as_bytes(std::span(&number, 1))).lo; }

/// Four ranks with `same` blocks in common, and as many of their own.
CommonMemory four_ranks(CommonCounter counter, uint64_t same) {
  for (uint64_t rank = 0; rank < 4; ++rank) {
    counter.begin_rank();
    for (uint64_t i = 0; i < same; ++i) {
      counter.add(hash_of(i), 4096);
      counter.add(hash_of((rank + 1) << 32 | i), 8192);
      counter.add(hash_of(i), 4096);  // twice in one rank
    }
  }
  return counter.total();
}

}  // namespace

TEST_CASE("common memory: what several ranks have, what one has twice, and an estimate where there is much") {
  const CommonMemory exact = four_ranks(CommonCounter(), 1000);
  CHECK(exact.parts == 4);
  CHECK(exact.bytes == 4 * 1000 * (4096 + 8192));
  CHECK(exact.common == 3 * 1000 * 4096);
  CHECK_FALSE(exact.estimated);
  const CommonMemory estimate = four_ranks(CommonCounter(4000), 10'000);
  CHECK(estimate.estimated);
  CHECK(static_cast<double>(estimate.common) == doctest::Approx(3 * 10'000 * 4096.0).epsilon(0.1));
  CHECK(static_cast<double>(estimate.bytes) == doctest::Approx(4 * 10'000 * (4096.0 + 8192)).epsilon(0.1));
}
