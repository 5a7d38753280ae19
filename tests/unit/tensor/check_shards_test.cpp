#include <doctest/doctest.h>

#include "lib/tensor/catalog.h"

using namespace ckpt::tensor;

namespace {

Tensor tensor(Shape shape, std::vector<std::pair<Shape, Shape>> boxes) {
  Tensor out;
  out.key = std::string(1, 'w');
  out.shape = std::move(shape);
  for (auto& [offset, extent] : boxes) {
    Shard shard;
    shard.offset = offset;
    shard.shape = extent;
    out.shards.push_back(shard);
  }
  return out;
}

}  // namespace

TEST_CASE("shards: a grid tiles its tensor") {
  CHECK(check_shards(tensor({4, 6}, {{{0, 0}, {2, 3}}, {{2, 3}, {2, 3}}, {{0, 3}, {2, 3}}, {{2, 0}, {2, 3}}})).empty());
}

TEST_CASE("shards: a scalar has exactly one") {
  CHECK(check_shards(tensor({}, {{{}, {}}})).empty());
  CHECK(check_shards(tensor({}, {{{}, {}}, {{}, {}}})).size() == 1);
  CHECK(check_shards(tensor({}, {})).size() == 1);
}

TEST_CASE("shards: an empty tensor needs none, and empty shards beside full ones do no harm") {
  CHECK(check_shards(tensor({0, 4}, {})).empty());
  CHECK(check_shards(tensor({0, 4}, {{{0, 0}, {0, 4}}})).empty());
  CHECK(check_shards(tensor({4}, {{{0}, {0}}, {{0}, {4}}})).empty());
}

TEST_CASE("shards: a gap is named with its box") {
  auto found = check_shards(tensor({4, 6}, {{{0, 0}, {4, 2}}, {{0, 3}, {4, 3}}}));
  REQUIRE(found.size() == 1);
  CHECK(found[0] == "w: no shard covers [0:4, 2:3]");
}

TEST_CASE("shards: gaps at the edges are all named") {
  auto found = check_shards(tensor({4, 6}, {{{1, 1}, {2, 4}}}));
  CHECK(found.size() == 4);
}

TEST_CASE("shards: an overlap is named with both boxes") {
  auto found = check_shards(tensor({8}, {{{0}, {5}}, {{4}, {4}}}));
  REQUIRE(found.size() == 1);
  CHECK(found[0] == "w: the shards [0:5] and [4:8] overlap");
}

TEST_CASE("shards: the same box twice is an overlap") {
  CHECK(!check_shards(tensor({8}, {{{0}, {8}}, {{0}, {8}}})).empty());
}

TEST_CASE("shards: a pinwheel, which no plane cuts, is right when it is full and wrong with a hole") {
  std::vector<std::pair<Shape, Shape>> wheel = {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}};
  auto found = check_shards(tensor({3, 3}, wheel));
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("1 elements") != std::string::npos);
  wheel.push_back({{1, 1}, {1, 1}});
  CHECK(check_shards(tensor({3, 3}, wheel)).empty());
}

TEST_CASE("shards: one past the end, of another rank, or with an overflowing place is refused") {
  CHECK(check_shards(tensor({4}, {{{2}, {3}}})).size() == 1);
  CHECK(check_shards(tensor({4}, {{{0, 0}, {2, 2}}})).size() == 1);
  CHECK(check_shards(tensor({4}, {{{UINT64_MAX}, {2}}})).size() == 1);
}

TEST_CASE("shards: a shape that cannot be counted is refused") {
  CHECK(check_shards(tensor({uint64_t{1} << 40, uint64_t{1} << 40}, {})).size() == 1);
}

TEST_CASE("shards: many identical boxes end within bounded work and findings") {
  Tensor many = tensor({8}, {});
  for (int i = 0; i < 20000; ++i) {
    Shard shard;
    shard.offset = {0};
    shard.shape = {8};
    many.shards.push_back(shard);
  }
  CHECK(check_shards(many).size() == 16);
}

TEST_CASE("shards: a hundred thousand of a grid are checked quickly") {
  Tensor grid = tensor({400, 250, 3}, {});
  for (uint64_t i = 0; i < 400; ++i) {
    for (uint64_t j = 0; j < 250; ++j) {
      Shard shard;
      shard.offset = {i, j, 0};
      shard.shape = {1, 1, 3};
      grid.shards.push_back(shard);
    }
  }
  CHECK(check_shards(grid).empty());
  grid.shards.erase(grid.shards.begin() + 777);
  auto found = check_shards(grid);
  REQUIRE(found.size() == 1);
  CHECK(found[0] == "w: no shard covers [3:4, 27:28, 0:3]");
}
