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

/// A checkpoint of one tensor, all of it wanted.
struct One {
  explicit One(Tensor tensor) : tensors{std::move(tensor)} { take(); }
  void take() {
    catalog.tensors = tensors;
    selection = Selection::all(catalog);
  }
  const Target& target() const { return selection.tensors[0]; }
  Region piece(const Grid& grid, size_t i) const { return grid.piece(selection, target(), i); }
  std::optional<FileRange> run(const Region& region, std::optional<uint32_t> hint) {
    take();
    return raw_run(selection, target(), region, hint);
  }
  std::vector<Tensor> tensors;
  Catalog catalog;
  Selection selection;
};

/// Every element belongs to exactly one piece, and no piece is larger than `limit` elements.
void check_tiles(const One& one, const Grid& grid, uint64_t limit) {
  Tensor pieces = one.tensors[0];
  pieces.shards.clear();
  for (size_t i = 0; i < grid.size(); ++i) {
    Region r = one.piece(grid, i);
    CHECK(element_count(r.shape).value() <= limit);
    pieces.shards.push_back(make_shard(r.offset, r.shape, 0, item_size(pieces.dtype)));
  }
  CHECK(check_shards(pieces).empty());
}

}  // namespace

TEST_CASE("grid: slabs tile a tensor along its leading axes, each within the limit") {
  for (uint64_t limit : {1, 3, 5, 7, 35, 36, 70, 104, 105, 1000}) {
    One t(make_tensor({3, 5, 7}));
    Grid grid = Grid::slabs(t.target(), limit * 4);
    check_tiles(t, grid, limit);
  }
  One t(make_tensor({8, 4}));
  Grid grid = Grid::slabs(t.target(), 4 * 4 * 3);
  REQUIRE(grid.size() == 3);
  CHECK(t.piece(grid, 0).shape == Shape{3, 4});
  CHECK(t.piece(grid, 2).offset == Shape{6, 0});
  CHECK(t.piece(grid, 2).shape == Shape{2, 4});
}

TEST_CASE("grid: a scalar, an empty tensor and a limit below one element give one piece or single elements") {
  One scalar(make_tensor({}));
  CHECK(Grid::slabs(scalar.target(), 1).size() == 1);
  CHECK(scalar.piece(Grid::slabs(scalar.target(), 1), 0).shape.empty());
  One empty(make_tensor({0, 8}));
  for (const Grid& grid : {Grid::slabs(empty.target(), 16), Grid::as_stored(empty.selection, empty.target())}) {
    REQUIRE(grid.size() == 1);
    CHECK(empty.piece(grid, 0).shape == Shape{0, 8});
    CHECK(empty.piece(grid, 0).offset == Shape{0, 0});
  }
  One t(make_tensor({3, 2}, DType::kComplex128));
  check_tiles(t, Grid::slabs(t.target(), 1), 1);
}

TEST_CASE("grid: the stored pieces come in order of their offsets, those without elements are left out") {
  One t(make_tensor({4, 4}));
  t.tensors[0].shards = {make_shard({2, 0}, {2, 4}, 100, 4), make_shard({4, 0}, {0, 4}, 0, 4),
                         make_shard({0, 2}, {2, 2}, 50, 4), make_shard({0, 0}, {2, 2}, 0, 4)};
  t.take();
  Grid grid = Grid::as_stored(t.selection, t.target());
  REQUIRE(grid.size() == 3);
  CHECK(t.piece(grid, 0).offset == Shape{0, 0});
  CHECK(t.piece(grid, 1).offset == Shape{0, 2});
  CHECK(t.piece(grid, 2).offset == Shape{2, 0});
  CHECK(grid.shard(2) == 0u);
}

TEST_CASE("raw_run: a region is one run only where nothing of another lies between its bytes") {
  One t(make_tensor({4, 6}));
  t.tensors[0].shards = {make_shard({0, 0}, {4, 3}, 1000, 4), make_shard({0, 3}, {4, 3}, 5000, 4)};
  auto run = t.run({{1, 3}, {2, 3}}, std::nullopt);
  REQUIRE(run);
  CHECK(run->offset == 5000 + 12);
  CHECK(run->length == 24);
  CHECK_FALSE(t.run({{0, 0}, {2, 2}}, std::nullopt));  // part of each row
  CHECK(t.run({{2, 1}, {1, 2}}, std::nullopt)->offset == 1000 + 2 * 12 + 4);
  CHECK_FALSE(t.run({{0, 2}, {1, 2}}, std::nullopt));  // across two shards
  t.tensors[0].shards[0].encoding = Encoding::kEncoded;
  CHECK_FALSE(t.run({{0, 0}, {4, 3}}, std::nullopt));
}

TEST_CASE("raw_run: a chunk that is stored larger than it counts is one run only along its first axis") {
  One t(make_tensor({3, 3}));
  t.tensors[0].shards = {make_shard({0, 0}, {3, 3}, 0, 4)};
  t.tensors[0].shards[0].stored_shape = {4, 3};
  t.tensors[0].shards[0].where.length = 48;
  CHECK(t.run({{0, 0}, {3, 3}}, 0u)->length == 36);
  t.tensors[0].shards[0].stored_shape = {3, 4};
  CHECK_FALSE(t.run({{0, 0}, {3, 3}}, 0u));
  CHECK(t.run({{2, 0}, {1, 3}}, 0u)->offset == 32);
}

TEST_CASE("raw_run: a shard whose range is shorter than its shape is never handed out") {
  One t(make_tensor({4}));
  t.tensors[0].shards = {make_shard({0}, {4}, 0, 4)};
  t.tensors[0].shards[0].where.length = 15;
  CHECK_FALSE(t.run({{0}, {4}}, 0u));
  CHECK(t.run({{0}, {3}}, 0u));
}

TEST_CASE("grid: a rule cuts along any axes as torch.chunk does, the first that matches counts") {
  One t(make_tensor({7, 6}));
  t.tensors[0].shards = {make_shard({0, 0}, {7, 6}, 0, 4)};
  t.take();
  const auto rule = parse_grid_rule("t=4x2");
  REQUIRE(rule);
  CHECK(rule->glob == "t");
  auto chosen = Grid::choose(t.selection, t.target(), {{*rule, {"**", {1}}}, 0});
  REQUIRE(chosen);
  REQUIRE(chosen->size() == 8);
  CHECK(t.piece(*chosen, 0).shape == Shape{2, 3});
  CHECK(t.piece(*chosen, 7).offset == Shape{6, 3});
  CHECK(t.piece(*chosen, 7).shape == Shape{1, 3});
  check_tiles(t, *chosen, 6);
  // More parts than elements: those that would be empty are left out.
  check_tiles(t, Grid::regular(t.target(), {100, 4}), 2);
  CHECK(Grid::regular(t.target(), {100, 4}).size() == 7 * 3);
  CHECK(Grid::choose(t.selection, t.target(), {{{"other", {3}}}, 0})->size() == 1);
  CHECK(Grid::choose(t.selection, t.target(), {{{"*", {1, 1, 2}}}, 0}).error().code == Code::kUsage);
  CHECK(Grid::choose(t.selection, t.target(), {{{"*", {7, 6, 1}}}, 0}));
  CHECK(Grid::choose(t.selection, t.target(), {{{"**", {1, 1, 2}}}, 0})->size() == 1);
  for (const char* bad : {"", "=", "t=", "t=0", "t=2x", "t=x2", "t=2y3", "t=-1", "t=99999999999999999999"}) {
    CHECK_MESSAGE(!parse_grid_rule(bad), bad);
  }
  CHECK(parse_grid_rule("2x3")->glob == "**");
}
