#include "lib/model/usage.h"

#include <doctest/doctest.h>

#include "lib/base/io.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

Shard shard(Shape offset, Shape shape, FileRange where = {}) {
  Shard out;
  out.offset = std::move(offset);
  out.shape = std::move(shape);
  out.where = where;
  return out;
}

std::optional<Shape> grid(Shape shape, std::vector<Shard> shards) {
  Tensor t;
  t.shape = std::move(shape);
  t.shards = std::move(shards);
  return shard_grid(t);
}

}  // namespace

TEST_CASE("shard grid: pieces along each axis, nothing for irregular ones") {
  CHECK(grid({4, 6}, {shard({0, 0}, {2, 6}), shard({2, 0}, {2, 6})}) == Shape{2, 1});
  CHECK(grid({4, 6}, {shard({0, 4}, {4, 2}), shard({0, 0}, {4, 4})}) == Shape{1, 2});
  CHECK(grid({}, {shard({}, {})}) == Shape{});
  CHECK(!grid({4, 6}, {}));
  CHECK(!grid({4, 6}, {shard({0, 0}, {2, 6}), shard({2, 0}, {2, 3}), shard({2, 3}, {2, 3})}));
  CHECK(!grid({4}, {shard({0, 0}, {4, 1})}));
}

TEST_CASE("file usage: what is referred to counts once, and files that nothing refers to are named") {
  test::TempDir dir;
  REQUIRE(io::write_file(dir.path / "a", std::string(100, 'x')));
  REQUIRE(io::write_file(dir.path / "left-over", "12345"));
  std::filesystem::create_symlink("left-over", dir.path / "link");
  Catalog c;
  c.root = dir.path;
  c.files = {{"a", 0}, {"gone", 7}};
  Tensor t;
  t.key = "t";
  t.shape = {4};
  t.shards = {shard({0}, {2}, {0, 10, 20}), shard({2}, {2}, {0, 20, 20})};
  c.tensors = {t};
  t.key = "u";
  t.shards[1].item = {0, 60, 30};
  t.shards.resize(2);
  c.tensors.push_back(t);
  c.objects.resize(1);
  c.objects[0].where = {1, 0, 7};
  auto usage = file_usage(c);
  REQUIRE(usage);
  REQUIRE(usage->size() == 3);
  const FileUsage &a = (*usage)[0], &gone = (*usage)[1], &left = (*usage)[2];
  CHECK(a.size == 100);
  CHECK(a.referred == 60);
  CHECK(a.tensors == 2);
  CHECK(a.shards == 4);
  CHECK(gone.missing);
  CHECK(gone.objects == 1);
  CHECK(left.path == "left-over");
  CHECK(!left.listed);
  CHECK(left.size == 5);
}
