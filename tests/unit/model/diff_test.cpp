#include "lib/model/diff.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "lib/base/io.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

/// A checkpoint of one file whose tensors are written as they are added.
struct Checkpoint {
  test::TempDir dir;
  Catalog catalog;
  std::string bytes;

  /// `columns`: stored in two shards, cut along the last axis there (0: in one).
  template <class T>
  void add(const std::string& key, DType dtype, const Shape& shape, const std::vector<T>& values,
           uint64_t columns = 0) {
    Tensor t;
    t.key = key;
    t.dtype = dtype;
    t.shape = shape;
    auto store = [&](uint64_t begin, uint64_t end) {
      Shard shard;
      shard.offset = Shape(shape.size(), 0);
      shard.shape = shape;
      const uint64_t width = shape.empty() ? 1 : shape.back();
      if (!shape.empty()) shard.offset.back() = begin, shard.shape.back() = end - begin;
      shard.where.offset = bytes.size();
      const size_t item = item_size(dtype);
      const char* raw = reinterpret_cast<const char*>(values.data());
      for (uint64_t i = 0; i * item < values.size() * sizeof(T); ++i) {
        if (i % width >= begin && i % width < end) bytes.append(raw + i * item, item);
      }
      shard.where.length = bytes.size() - shard.where.offset;
      t.shards.push_back(shard);
    };
    const uint64_t width = shape.empty() ? 1 : shape.back();
    if (columns != 0) store(columns, width);
    store(0, columns != 0 ? columns : width);
    REQUIRE(check_shards(t).empty());
    catalog.tensors.push_back(t);
    std::sort(catalog.tensors.begin(), catalog.tensors.end(),
              [](const Tensor& x, const Tensor& y) { return x.key < y.key; });
    REQUIRE(io::write_file(dir.path / "data", bytes));
    catalog.root = dir.path;
    catalog.files = {{"data", bytes.size()}};
  }
};

TensorDiff diff(const Checkpoint& a, const Checkpoint& b, std::optional<Tolerance> tolerance = {}) {
  DiffOptions options;
  options.tolerance = tolerance;
  options.threads = 2;
  auto out = compare_catalogs(a.catalog, b.catalog, options);
  REQUIRE(out);
  REQUIRE(out->both.size() == 1);
  return out->both[0];
}

template <class T>
TensorDiff diff(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                std::optional<Tolerance> tolerance = {}) {
  Checkpoint x, y;
  const Shape shape = {a.size() * sizeof(T) / item_size(dtype)};
  x.add("w", dtype, shape, a);
  y.add("w", dtype, shape, b);
  return diff(x, y, tolerance);
}

}  // namespace

TEST_CASE("diff: keys, shapes and dtypes") {
  Checkpoint a, b;
  a.add<float>("both", DType::kFloat32, {2}, {1, 2});
  b.add<float>("both", DType::kFloat32, {2}, {1, 2});
  a.add<float>("left", DType::kFloat32, {1}, {1});
  b.add<float>("right", DType::kFloat32, {1}, {1});
  a.add<float>("shape", DType::kFloat32, {2, 1}, {1, 2});
  b.add<float>("shape", DType::kFloat32, {1, 2}, {1, 2});
  a.add<float>("type", DType::kFloat32, {3}, {1, 2, 2.5});
  b.add<uint16_t>("type", DType::kBfloat16, {3}, {0x3f80, 0x4000, 0x4000});
  auto out = compare_catalogs(a.catalog, b.catalog, {});
  REQUIRE(out);
  CHECK(!out->equal());
  REQUIRE(out->only_a.size() == 1);
  CHECK(out->only_a[0]->key == "left");
  REQUIRE(out->only_b.size() == 1);
  CHECK(out->only_b[0]->key == "right");
  REQUIRE(out->both.size() == 3);
  CHECK(out->both[0].equal());
  CHECK(out->both[0].elements == 2);
  CHECK(!out->both[1].same_shape);
  CHECK(out->both[1].elements == 0);
  CHECK(!out->both[2].same_dtype);
  CHECK(out->both[2].different == 1);
  CHECK(out->both[2].max_abs == 0.5);
  CHECK(*out->both[2].first == 2);
  DiffOptions some;
  some.wanted = [](std::string_view key) { return key == "both"; };
  out = compare_catalogs(a.catalog, b.catalog, some);
  REQUIRE(out);
  CHECK(out->equal());
}

TEST_CASE("diff: other shards of the same values are equal, and a changed element is found at its index") {
  std::vector<float> values(300 * 70);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  Checkpoint a, b, c;
  a.add("w", DType::kFloat32, {300, 70}, values);
  b.add("w", DType::kFloat32, {300, 70}, values, 11);
  CHECK(diff(a, b).equal());
  CHECK(diff(b, a).equal());
  values[70 * 123 + 40] += 3;
  values[70 * 200 + 3] = NAN;
  c.add("w", DType::kFloat32, {300, 70}, values, 20);
  for (const TensorDiff& d : {diff(a, c), diff(b, c), diff(c, a)}) {
    CHECK(d.elements == 21'000);
    CHECK(d.different == 2);
    CHECK(std::isnan(d.max_abs));
  }
  CHECK(*diff(a, c).first == 70 * 123 + 40);
}

TEST_CASE("diff: without a tolerance bits count, with one numbers do") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(diff<float>(DType::kFloat32, {0.0f}, {-0.0f}).different == 1);
  CHECK(diff<float>(DType::kFloat32, {0.0f}, {-0.0f}, Tolerance{}).equal());
  CHECK(diff<uint32_t>(DType::kFloat32, {0x7fc00000}, {0x7fc00001}).different == 1);
  CHECK(diff<uint32_t>(DType::kFloat32, {0x7fc00000}, {0x7fc00001}, Tolerance{}).equal());
  CHECK(diff<float>(DType::kFloat32, {inf, 1}, {inf, 1}, Tolerance{}).equal());
  CHECK(diff<float>(DType::kFloat32, {inf}, {-inf}, Tolerance{1, 0}).different == 1);
  CHECK(diff<float>(DType::kFloat32, {inf}, {1}, Tolerance{1, 0}).different == 1);
  CHECK(diff<float>(DType::kFloat32, {1, 100}, {1.5, 101}, Tolerance{0.5, 0}).different == 1);
  CHECK(diff<float>(DType::kFloat32, {1, 100}, {1.5, 101}, Tolerance{0, 0.34}).equal());
  CHECK(diff<float>(DType::kFloat32, {1, 100}, {1.5, 101}, Tolerance{0, 0.02}).different == 1);
  CHECK(diff<int64_t>(DType::kInt64, {INT64_MAX}, {INT64_MAX - 1}).max_abs == 1);
  CHECK(diff<int64_t>(DType::kInt64, {INT64_MAX}, {INT64_MAX - 1}, Tolerance{0.5, 0}).different == 1);
  CHECK(diff<int64_t>(DType::kInt64, {INT64_MAX}, {INT64_MIN}).max_abs == doctest::Approx(1.8446744073709552e19));
  CHECK(diff<uint64_t>(DType::kUint64, {0}, {UINT64_MAX}).different == 1);
}

TEST_CASE("diff: complex numbers part by part") {
  const TensorDiff d = diff<float>(DType::kComplex64, {3, 4, 1, 1}, {4, 3, 1, 1}, Tolerance{0.5, 0});
  CHECK(d.elements == 2);
  CHECK(d.different == 1);
  CHECK(d.max_abs == 1);
  CHECK(*d.first == 0);
}

TEST_CASE("diff: scalars, empty tensors, and what cannot be read") {
  Checkpoint a, b;
  a.add<float>("w", DType::kFloat32, {}, {2});
  b.add<float>("w", DType::kFloat32, {}, {2});
  CHECK(diff(a, b).equal());
  CHECK(diff(a, b).elements == 1);
  std::filesystem::resize_file(b.dir.path / "data", 2);
  const TensorDiff cut = diff(a, b);
  CHECK(!cut.equal());
  CHECK(cut.unreadable.find("data") != std::string::npos);
  CHECK(diff<float>(DType::kFloat32, {}, {}).equal());
}
