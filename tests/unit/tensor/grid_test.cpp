#include <doctest/doctest.h>

#include "lib/tensor/grid.h"

using namespace ckpt;
using namespace ckpt::tensor;

namespace {

Shard make_shard(Shape offset, Shape shape, uint64_t at, uint32_t item) {
  Shard out;
  out.where = {0, at, element_count(shape).value() * item};
  out.offset = std::move(offset);
  out.shape = std::move(shape);
  return out;
}

Tensor make_tensor(Shape shape, DType dtype = DType::kFloat32) {
  Tensor out;
  out.key = std::string("t");  // GCC 12 warns of an assigned literal (bug 105651)
  out.dtype = dtype;
  out.shape = std::move(shape);
  return out;
}

/// Every element belongs to exactly one piece, and no piece is larger than `limit` elements.
void check_tiles(const Tensor& t, const Grid& grid, uint64_t limit) {
  Tensor pieces = t;
  pieces.shards.clear();
  for (size_t i = 0; i < grid.size(); ++i) {
    Region r = grid.piece(t, i);
    CHECK(element_count(r.shape).value() <= limit);
    pieces.shards.push_back(make_shard(r.offset, r.shape, 0, item_size(t.dtype)));
  }
  CHECK(check_shards(pieces).empty());
}

}  // namespace

TEST_CASE("grid: slabs tile a tensor along its leading axes, each within the limit") {
  for (uint64_t limit : {1, 3, 5, 7, 35, 36, 70, 104, 105, 1000}) {
    Tensor t = make_tensor({3, 5, 7});
    Grid grid = Grid::slabs(t, limit * 4);
    check_tiles(t, grid, limit);
  }
  Tensor t = make_tensor({8, 4});
  Grid grid = Grid::slabs(t, 4 * 4 * 3);
  REQUIRE(grid.size() == 3);
  CHECK(grid.piece(t, 0).shape == Shape{3, 4});
  CHECK(grid.piece(t, 2).offset == Shape{6, 0});
  CHECK(grid.piece(t, 2).shape == Shape{2, 4});
}

TEST_CASE("grid: a scalar, an empty tensor and a limit below one element give one piece or single elements") {
  Tensor scalar = make_tensor({});
  CHECK(Grid::slabs(scalar, 1).size() == 1);
  CHECK(Grid::slabs(scalar, 1).piece(scalar, 0).shape.empty());
  Tensor empty = make_tensor({0, 8});
  for (const Grid& grid : {Grid::slabs(empty, 16), Grid::as_stored(empty)}) {
    REQUIRE(grid.size() == 1);
    CHECK(grid.piece(empty, 0).shape == Shape{0, 8});
    CHECK(grid.piece(empty, 0).offset == Shape{0, 0});
  }
  Tensor t = make_tensor({3, 2}, DType::kComplex128);
  check_tiles(t, Grid::slabs(t, 1), 1);
}

TEST_CASE("grid: the stored pieces come in order of their offsets, those without elements are left out") {
  Tensor t = make_tensor({4, 4});
  t.shards = {make_shard({2, 0}, {2, 4}, 100, 4), make_shard({4, 0}, {0, 4}, 0, 4), make_shard({0, 2}, {2, 2}, 50, 4), make_shard({0, 0}, {2, 2}, 0, 4)};
  Grid grid = Grid::as_stored(t);
  REQUIRE(grid.size() == 3);
  CHECK(grid.piece(t, 0).offset == Shape{0, 0});
  CHECK(grid.piece(t, 1).offset == Shape{0, 2});
  CHECK(grid.piece(t, 2).offset == Shape{2, 0});
  CHECK(grid.shard(2) == 0u);
}

TEST_CASE("raw_run: a region is one run only where nothing of another lies between its bytes") {
  Tensor t = make_tensor({4, 6});
  t.shards = {make_shard({0, 0}, {4, 3}, 1000, 4), make_shard({0, 3}, {4, 3}, 5000, 4)};
  auto run = raw_run(t, {{1, 3}, {2, 3}}, std::nullopt);
  REQUIRE(run);
  CHECK(run->offset == 5000 + 12);
  CHECK(run->length == 24);
  CHECK_FALSE(raw_run(t, {{0, 0}, {2, 2}}, std::nullopt));  // part of each row
  CHECK(raw_run(t, {{2, 1}, {1, 2}}, std::nullopt)->offset == 1000 + 2 * 12 + 4);
  CHECK_FALSE(raw_run(t, {{0, 2}, {1, 2}}, std::nullopt));  // across two shards
  t.shards[0].encoding = Encoding::kEncoded;
  CHECK_FALSE(raw_run(t, {{0, 0}, {4, 3}}, std::nullopt));
}

TEST_CASE("raw_run: a chunk that is stored larger than it counts is one run only along its first axis") {
  Tensor t = make_tensor({3, 3});
  t.shards = {make_shard({0, 0}, {3, 3}, 0, 4)};
  t.shards[0].stored_shape = {4, 3};
  t.shards[0].where.length = 48;
  CHECK(raw_run(t, {{0, 0}, {3, 3}}, 0u)->length == 36);
  t.shards[0].stored_shape = {3, 4};
  CHECK_FALSE(raw_run(t, {{0, 0}, {3, 3}}, 0u));
  CHECK(raw_run(t, {{2, 0}, {1, 3}}, 0u)->offset == 32);
}

TEST_CASE("raw_run: a shard whose range is shorter than its shape is never handed out") {
  Tensor t = make_tensor({4});
  t.shards = {make_shard({0}, {4}, 0, 4)};
  t.shards[0].where.length = 15;
  CHECK_FALSE(raw_run(t, {{0}, {4}}, 0u));
  CHECK(raw_run(t, {{0}, {3}}, 0u));
}
