#include "lib/flash/ledger.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "lib/flash/client/copy.h"

using namespace ckpt;
using namespace ckpt::flash;

namespace {

std::shared_ptr<Segment> segment(uint32_t rank, uint32_t buffers, uint64_t elements = 1000) {
  BufferLayout layout;
  LayoutTensor tensor;
  tensor.key = "w";
  tensor.dtype = "uint8";
  tensor.shape = tensor.global_shape = {elements};
  tensor.global_offset = {0};
  layout.tensors = {tensor};
  REQUIRE(place_tensors(layout));
  auto out = Segment::create(rank, 2, encode_layout(layout), 100, buffers);
  REQUIRE(out);
  return *out;
}

/// Two ranks with two buffers each.
Ledger two_ranks(uint32_t buffers = 2) {
  Ledger out;
  out.expect(2, 2);
  for (uint32_t rank : {0u, 1u}) out.rank(rank).segment = segment(rank, buffers);
  return out;
}

void save(Ledger& ledger, uint32_t rank, uint64_t step) {
  uint32_t buffer = 9;
  REQUIRE(ledger.choose(rank, step, buffer) == Ledger::Choice::kGranted);
  ledger.rank(rank).segment->begin(buffer);
  ledger.rank(rank).segment->commit(buffer, step, 0);
}

/// Its trainer declares another one.
void change_layout(Ledger& ledger, uint32_t rank) {
  RankState& state = ledger.rank(rank);
  state.before = std::exchange(state.segment, segment(rank, 2, 2000));
}

}  // namespace

TEST_CASE("ledger: a step counts once every rank has it, and half a step never") {
  Ledger ledger = two_ranks();
  CHECK_FALSE(ledger.newest_common());
  save(ledger, 0, 5);
  CHECK_FALSE(ledger.newest_common());
  ledger.rank(1).segment->begin(0);
  CHECK_FALSE(ledger.newest_common());
  ledger.rank(1).segment->commit(0, 5, 0);
  CHECK(ledger.newest_common() == 5);
  ledger.rank(0).segment->begin(*ledger.rank(0).buffer_of(5));
  CHECK_FALSE(ledger.newest_common());
}

TEST_CASE("ledger: what has not said that it is done is not offered, though its header says so") {
  Ledger ledger = two_ranks();
  save(ledger, 0, 5);
  save(ledger, 1, 5);
  ledger.rank(1).use[0].writing = ledger.rank(1).use[1].writing = true;
  CHECK_FALSE(ledger.newest_common());
}

TEST_CASE("ledger: the newest common step is never what a save is written over, where there are two buffers") {
  Ledger ledger = two_ranks();
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  for (uint64_t step = 2; step < 9; ++step) {  // rank 1 does not come along
    save(ledger, 0, step);
    CHECK(ledger.newest_common() == 1);
  }
  save(ledger, 1, 8);
  CHECK(ledger.newest_common() == 8);
}

TEST_CASE("ledger: once a job goes on from a step, later ones of trainers that are gone are no part of it") {
  Ledger ledger = two_ranks();
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  save(ledger, 0, 2);
  ledger.rank(0).use[*ledger.rank(0).buffer_of(2)].owner = 7;
  ledger.forget_after(1, {7}, UINT64_MAX);
  CHECK(ledger.rank(0).buffer_of(2));
  ledger.owner_left(7, 9);
  ledger.forget_after(1, {8}, 9);  // it died beside the one that goes on
  CHECK(ledger.rank(0).buffer_of(2));
  ledger.forget_after(1, {8}, 10);
  CHECK_FALSE(ledger.rank(0).buffer_of(2));
  CHECK(ledger.newest_common() == 1);
}

TEST_CASE("ledger: a step that was saved twice, since an agent died in between, does not fill both buffers for good") {
  Ledger ledger = two_ranks();
  for (uint64_t step : {1, 1, 2, 2, 3}) {
    for (uint32_t rank : {0u, 1u}) save(ledger, rank, step);
    CHECK(ledger.newest_common() == step);
  }
}

TEST_CASE("ledger: a buffer that is persisted is busy, one that its trainer maps is pinned") {
  Ledger ledger = two_ranks();
  for (uint64_t step : {1, 2}) {
    for (uint32_t rank : {0u, 1u}) save(ledger, rank, step);
  }
  const uint32_t old = *ledger.rank(0).buffer_of(1);
  uint32_t buffer = 9;
  ledger.rank(0).use[old].readers = 1;
  CHECK(ledger.choose(0, 3, buffer) == Ledger::Choice::kBusy);
  ledger.rank(0).use[old].readers = 0;
  ledger.rank(0).use[old].mapped = true;
  CHECK(ledger.choose(0, 3, buffer) == Ledger::Choice::kPinned);
  ledger.rank(0).use[old].mapped = false;
  CHECK(ledger.choose(0, 3, buffer) == Ledger::Choice::kGranted);
  CHECK(buffer == old);
}

TEST_CASE("ledger: with one buffer a save is written over the step before") {
  Ledger ledger = two_ranks(1);
  for (uint64_t step : {1, 2}) {
    for (uint32_t rank : {0u, 1u}) save(ledger, rank, step);
    CHECK(ledger.newest_common() == step);
  }
}

TEST_CASE("ledger: of a former layout the newest step stays until all ranks have one of the new") {
  Ledger ledger = two_ranks();
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  for (uint32_t rank : {0u, 1u}) change_layout(ledger, rank);
  CHECK(ledger.newest_common() == 1);
  CHECK(ledger.holders(1).size() == 2);
  save(ledger, 0, 2);
  ledger.settle();
  CHECK(ledger.newest_common() == 1);
  save(ledger, 1, 2);
  ledger.settle();
  CHECK(ledger.newest_common() == 2);
  CHECK(ledger.rank(0).before == nullptr);
}

TEST_CASE("ledger: of several nodes one has the step of a former layout until it has two of the new") {
  Ledger ledger = two_ranks();
  ledger.expect(2, 4);
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  for (uint32_t rank : {0u, 1u}) {
    change_layout(ledger, rank);
    save(ledger, rank, 2);
  }
  ledger.settle();
  CHECK(ledger.common_steps() == std::vector<uint64_t>{1, 2});  // another node may have died before it had 2
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 3);
  ledger.settle();
  CHECK(ledger.common_steps() == std::vector<uint64_t>{2, 3});
}

TEST_CASE("ledger: what a trainer that is gone wanted kept stays until the next one says otherwise") {
  Ledger ledger = two_ranks();
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  for (uint32_t rank : {0u, 1u}) {
    change_layout(ledger, rank);
    ledger.rank(rank).kept_by_former = 1;
    for (uint64_t step : {2u, 3u}) save(ledger, rank, step);
  }
  ledger.settle();
  CHECK(ledger.holders(1).size() == 2);
  for (uint32_t rank : {0u, 1u}) ledger.rank(rank).kept_by_former.reset();
  ledger.settle();
  CHECK(ledger.holders(1).empty());
}

TEST_CASE("segment: another agent takes it up with its steps; what can change its size, or lies, is refused") {
  auto made = segment(1, 2);
  made->begin(1);
  made->commit(1, 7, 3);
  auto taken = Segment::adopt(UniqueFd(::dup(made->fd())));
  REQUIRE(taken);
  CHECK((*taken)->shape().rank == 1);
  CHECK((*taken)->slot(1).step == 7);
  CHECK((*taken)->slot(1).complete());
  CHECK_FALSE((*taken)->slot(0).complete());
  CHECK((*taken)->layout().tensors[0].key == "w");

  UniqueFd open(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(open.get(), 1 << 20) == 0);
  CHECK_FALSE(Segment::adopt(UniqueFd(::dup(open.get()))));
  REQUIRE(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK_FALSE(Segment::adopt(UniqueFd(::dup(open.get()))));

  // Each byte of the header but the slots', flipped.
  std::vector<char> header(offsetof(SegmentHeader, slots));
  REQUIRE(::pread(made->fd(), header.data(), header.size(), 0) == static_cast<ssize_t>(header.size()));
  for (size_t at = 0; at < header.size(); ++at) {
    const char flipped = static_cast<char>(header[at] ^ 0x40);
    REQUIRE(::pwrite(made->fd(), &flipped, 1, static_cast<off_t>(at)) == 1);
    auto lie = Segment::adopt(UniqueFd(::dup(made->fd())));
    if (lie) CHECK((*lie)->shape().segment_bytes == made->shape().segment_bytes);
    REQUIRE(::pwrite(made->fd(), &header[at], 1, static_cast<off_t>(at)) == 1);
  }
  CHECK(Segment::adopt(UniqueFd(::dup(made->fd()))));
}

TEST_CASE("segment: a slot that claims more objects than there is room for holds nothing") {
  auto made = segment(0, 1);
  made->begin(0);
  made->commit(0, 1, 101);
  CHECK_FALSE(made->slot(0).complete());
}

TEST_CASE("copy: any size from and to any address") {
  std::vector<unsigned char> from(9'000'000), to(from.size() + 64);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{5001}, size_t{8'999'900}}) {
    for (size_t shift : {size_t{0}, size_t{1}, size_t{33}}) {
      std::fill(to.begin(), to.end(), 0);
      copy_all({{to.data() + shift, from.data() + 7, size}}, 3);
      CHECK(std::equal(from.begin() + 7, from.begin() + 7 + static_cast<long>(size),
                       to.begin() + static_cast<long>(shift)));
      CHECK(to[shift + size] == 0);
    }
  }
}

TEST_CASE("ledger: no step waits for a partner copy, which keeps its own newest") {
  Ledger ledger = two_ranks();
  ledger.rank(5).segment = segment(5, 2);
  ledger.take_copy(5);
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 1);
  CHECK(ledger.newest_common() == 1);
  CHECK(ledger.holders(1).size() == 2);
  for (uint64_t step = 1; step < 6; ++step) {
    save(ledger, 5, step);
    CHECK(ledger.holder(5, step));
    uint32_t next = 9;
    REQUIRE(ledger.choose(5, step + 1, next) == Ledger::Choice::kGranted);
    CHECK(next != ledger.holder(5, step)->buffer);
  }
  CHECK(ledger.newest_common() == 1);
  CHECK_FALSE(ledger.holder(5, 1));
  CHECK_FALSE(ledger.holder(7, 1));
}

TEST_CASE("ledger: a rank that moves to another node leaves its memory as a partner copy, one that comes takes it up") {
  Ledger ledger = two_ranks();
  for (uint32_t rank : {0u, 1u}) save(ledger, rank, 3);
  ledger.rank(2).segment = segment(2, 2);
  ledger.take_copy(2);
  save(ledger, 2, 3);
  ledger.take_in(2);
  ledger.give_away_surplus({0, 1, 2});  // not yet known to be gone
  CHECK(ledger.seen() == 3);
  ledger.give_away_surplus({2});
  CHECK(ledger.seen() == 2);
  ledger.take_in(1);
  ledger.give_away_surplus({1, 2});
  CHECK(ledger.seen() == 2);
  CHECK(ledger.find(0)->partner_copy);
  CHECK_FALSE(ledger.find(2)->partner_copy);
  CHECK(ledger.newest_common() == 3);
  CHECK(ledger.holder(0, 3));
}

TEST_CASE("ledger: of a partner copy's former layout the newest step stays until one of the new is complete") {
  Ledger ledger = two_ranks();
  ledger.rank(5).segment = segment(5, 2);
  ledger.take_copy(5);
  save(ledger, 5, 1);
  change_layout(ledger, 5);
  ledger.settle();
  CHECK(ledger.holder(5, 1));
  save(ledger, 5, 2);
  ledger.settle();
  CHECK_FALSE(ledger.holder(5, 1));
  CHECK(ledger.holder(5, 2));
}

TEST_CASE("ledger: what a trainer wants kept stays, whatever is saved after it") {
  Ledger ledger = two_ranks();
  ledger.take_copy(1);
  ledger.expect(1, 2);
  for (uint32_t rank : {0u, 1u}) {
    save(ledger, rank, 1);
    ledger.rank(rank).kept = 1;
    for (uint64_t step = 2; step < 5; ++step) {
      save(ledger, rank, step);
      CHECK(ledger.rank(rank).steps() == std::set<uint64_t>{1, step});
    }
    ledger.rank(rank).kept = 4;
    save(ledger, rank, 5);
    CHECK(ledger.rank(rank).steps() == std::set<uint64_t>{4, 5});
  }
}
