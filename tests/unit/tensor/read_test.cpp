#include "lib/tensor/read.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>

#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::tensor;
using ckpt::test::TempDir;

namespace {

/// An 6x5 uint8 tensor 0..29 in four boxes, the last one stored larger than it counts, and one of fill.
struct Sample {
  TempDir dir;
  Catalog catalog;

  Sample() {
    std::string bytes;
    Tensor t;
    t.key = "w";
    t.dtype = DType::kUint8;
    t.shape = {6, 5};
    auto add = [&](Shape offset, Shape shape, Shape stored) {
      Shard shard;
      shard.offset = offset;
      shard.shape = shape;
      shard.stored_shape = stored;
      const Shape& box = stored.empty() ? shape : stored;
      shard.where = {0, bytes.size(), box[0] * box[1]};
      for (uint64_t i = 0; i < box[0]; ++i) {
        for (uint64_t j = 0; j < box[1]; ++j) {
          bool inside = i < shape[0] && j < shape[1];
          bytes += static_cast<char>(inside ? (offset[0] + i) * 5 + offset[1] + j : 0xee);
        }
      }
      t.shards.push_back(shard);
    };
    add({0, 3}, {4, 2}, {});
    add({0, 0}, {4, 3}, {});
    add({4, 0}, {2, 4}, {4, 4});
    Shard fill;
    fill.offset = {4, 4};
    fill.shape = {2, 1};
    fill.encoding = Encoding::kFill;
    t.fill_value = {std::byte{0x77}};
    t.shards.push_back(fill);
    REQUIRE(io::write_file(dir.path / "data", bytes));
    catalog.root = dir.path;
    catalog.files = {{"data", bytes.size()}};
    catalog.tensors.push_back(t);
  }

  uint8_t expected(uint64_t i, uint64_t j) const { return i >= 4 && j == 4 ? 0x77 : static_cast<uint8_t>(i * 5 + j); }
};

}  // namespace

TEST_CASE("read: every box of a tensor comes out right, whatever the shards") {
  Sample sample;
  FileCache files(sample.catalog);
  RegionReader reader(sample.catalog, files);
  const Tensor& t = sample.catalog.tensors[0];
  REQUIRE(check_shards(t).empty());
  for (uint64_t i0 = 0; i0 < 6; ++i0) {
    for (uint64_t i1 = i0 + 1; i1 <= 6; ++i1) {
      for (uint64_t j0 = 0; j0 < 5; ++j0) {
        for (uint64_t j1 = j0 + 1; j1 <= 5; ++j1) {
          std::vector<std::byte> out((i1 - i0) * (j1 - j0));
          REQUIRE(reader.read(t, {{i0, j0}, {i1 - i0, j1 - j0}}, out));
          bool same = true;
          for (uint64_t i = i0; i < i1; ++i) {
            for (uint64_t j = j0; j < j1; ++j) {
              same = same && out[(i - i0) * (j1 - j0) + (j - j0)] == std::byte{sample.expected(i, j)};
            }
          }
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("read: row-major blocks of any size add up to the whole tensor in order") {
  Sample sample;
  FileCache files(sample.catalog);
  RegionReader reader(sample.catalog, files);
  const Tensor& t = sample.catalog.tensors[0];
  for (uint64_t limit : {1, 2, 3, 5, 7, 10, 12, 29, 30, 1000}) {
    std::vector<std::byte> all;
    RowMajorBlocks blocks(t, limit);
    while (auto region = blocks.next()) {
      uint64_t size = region->shape[0] * region->shape[1];
      CHECK(size <= limit);
      std::vector<std::byte> out(size);
      REQUIRE(reader.read(t, *region, out));
      all.insert(all.end(), out.begin(), out.end());
    }
    REQUIRE(all.size() == 30);
    for (uint64_t i = 0; i < 30; ++i) CHECK(all[i] == std::byte{sample.expected(i / 5, i % 5)});
  }
}

TEST_CASE("read: a scalar is one block, an empty tensor none") {
  Tensor scalar;
  RowMajorBlocks one(scalar, 16);
  CHECK(one.next().has_value());
  CHECK(!one.next().has_value());
  Tensor empty;
  empty.shape = {3, 0};
  CHECK(!RowMajorBlocks(empty, 16).next().has_value());
}

TEST_CASE("read: a data file cut short is damage") {
  Sample sample;
  std::filesystem::resize_file(sample.dir.path / "data", 10);
  FileCache files(sample.catalog);
  RegionReader reader(sample.catalog, files);
  std::vector<std::byte> out(30);
  auto done = reader.read(sample.catalog.tensors[0], {{0, 0}, {6, 5}}, out);
  REQUIRE(!done);
  CHECK(done.error().code == Code::kCorrupt);
}

TEST_CASE("catalog: a path that leaves the checkpoint, or a folder behind a link, is not opened") {
  TempDir dir;
  REQUIRE(io::write_file(dir.path / "real", "x"));
  std::filesystem::create_symlink(dir.path / "real", dir.path / "link");
  std::filesystem::create_directory_symlink(dir.path, dir.path / "folder");
  std::filesystem::create_symlink("/dev/null", dir.path / "device");
  Catalog catalog;
  catalog.root = dir.path;
  catalog.files = {{"real", 1},        {"link", 1},   {"../real", 1}, {"folder/real", 1},
                   {"/etc/passwd", 1}, {"absent", 1}, {"device", 1}};
  for (uint32_t i : {0, 1}) CHECK(catalog.open_file(i));
  for (uint32_t i : {2, 3, 4, 6}) {
    auto fd = catalog.open_file(i);
    REQUIRE(!fd);
    CHECK(fd.error().code == Code::kCorrupt);
  }
  auto absent = catalog.open_file(5);
  REQUIRE(!absent);
  CHECK(absent.error().code == Code::kNotFound);
}
