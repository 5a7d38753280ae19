#include "plugins/cuda/agent_replies.h"

#include <doctest/doctest.h>

#include <cstring>

#include "lib/device/hash.h"

using namespace ckpt;

namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

agent::AllocationReply owned(uint64_t address, uint64_t size) {
  return {.id = 1, .address = address, .size = size, .asked = size, .kind = agent::Kind::kOwned};
}

std::string two_launches() {
  const agent::RangeReply range{1 << 20, 4096};
  std::string text = bytes_of(agent::RecordReply{
      .sequence = 7, .reads = 1, .writes = 2, .record_size = 5, .replayable = 1, .name_size = 4});
  text += bytes_of(range) + bytes_of(range) + bytes_of(range) + "hello" + "saxp";
  return text + bytes_of(agent::RecordReply{.sequence = 8});
}

}  // namespace

TEST_CASE("agent: allocations that cannot be are refused") {
  const uint64_t chunk = device::kMinChunk;
  CHECK(cuda::parse_allocations(bytes_of(owned(chunk, chunk))));
  CHECK(cuda::parse_allocations("")->empty());
  CHECK(!cuda::parse_allocations(bytes_of(owned(chunk, 0))));
  CHECK(!cuda::parse_allocations(bytes_of(owned(chunk + 1, chunk))));
  CHECK(!cuda::parse_allocations(bytes_of(owned(chunk, chunk + 8))));
  CHECK(!cuda::parse_allocations(bytes_of(owned(UINT64_MAX - chunk + 1, 2 * chunk))));
  agent::AllocationReply odd = owned(chunk, chunk);
  odd.kind = static_cast<agent::Kind>(99);
  CHECK(!cuda::parse_allocations(bytes_of(odd)));
  odd.kind = agent::Kind::kOwned;
  odd.device = -1;
  CHECK(!cuda::parse_allocations(bytes_of(odd)));
}

TEST_CASE("agent: copies set aside lie in their buffer") {
  agent::SavedReply saved{{4096, 4096}, 3, 8192, 4096};
  auto found = cuda::parse_saved(bytes_of(saved));
  REQUIRE(found);
  CHECK((*found)[0].original == device::Range{{4096}, 4096});
  CHECK((*found)[0].buffer_size == 8192);
  saved.offset = 4097;
  CHECK(!cuda::parse_saved(bytes_of(saved)));
  saved.offset = UINT64_MAX;
  CHECK(!cuda::parse_saved(bytes_of(saved)));
}

TEST_CASE("agent: recorded launches, cut at every byte") {
  const std::string whole = two_launches();
  auto found = cuda::parse_recorded(whole);
  REQUIRE(found);
  REQUIRE(found->size() == 2);
  CHECK((*found)[0].record == "hello");
  CHECK((*found)[0].name == "saxp");
  CHECK((*found)[0].writes.size() == 2);
  CHECK((*found)[1].sequence == 8);
  size_t accepted = 0;
  for (size_t size = 0; size < whole.size(); ++size)
    accepted += cuda::parse_recorded(whole.substr(0, size)).has_value();
  CHECK(accepted == 2);  // nothing, and the first alone
  for (size_t field = 8; field < 20; ++field) {
    std::string lie = whole;
    lie[field] = '\x7f';
    (void)cuda::parse_recorded(lie);
  }
  std::string counts = whole;
  std::memset(counts.data() + 8, 0xff, 12);
  CHECK(!cuda::parse_recorded(counts));
}

TEST_CASE("agent: greetings and lists of the wrong size") {
  const std::string hello = bytes_of(agent::HelloReply{.pid = 5});
  CHECK(cuda::parse_hello(hello)->pid == 5);
  for (size_t size = 0; size < hello.size(); ++size) CHECK(!cuda::parse_hello(hello.substr(0, size)));
  CHECK(!cuda::parse_hello(hello + hello));
  CHECK(!cuda::parse_ids("1234567"));
  CHECK(!cuda::parse_ranges(bytes_of(agent::RangeReply{UINT64_MAX, 2})));
}
