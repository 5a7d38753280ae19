#include "lib/model/rank_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

/// A tensor of bytes 0, 1, 2, ... stored in equal shards along every axis, one after another in one file.
struct Stored {
  Tensor tensor;
  std::vector<uint64_t> file;  ///< the element at each byte

  Stored(Shape shape, Shape grid) {
    tensor.key = "w";
    tensor.dtype = DType::kUint8;
    tensor.shape = shape;
    const uint64_t shards = *element_count(grid);
    for (uint64_t n = 0; n < shards; ++n) {
      Shard shard;
      shard.offset.resize(shape.size());
      shard.shape.resize(shape.size());
      uint64_t rest = n;
      for (size_t axis = shape.size(); axis-- > 0;) {
        shard.shape[axis] = shape[axis] / grid[axis];
        shard.offset[axis] = rest % grid[axis] * shard.shape[axis];
        rest /= grid[axis];
      }
      shard.where = {0, file.size(), *element_count(shard.shape)};
      Tensor box;
      box.shape = shard.shape;
      box.dtype = DType::kUint8;
      RowMajorBlocks one(box, 1);
      while (auto at = one.next()) {
        uint64_t index = 0;
        for (size_t axis = 0; axis < shape.size(); ++axis)
          index = index * shape[axis] + shard.offset[axis] + at->offset[axis];
        file.push_back(index);
      }
      tensor.shards.push_back(shard);
    }
    REQUIRE(check_shards(tensor).empty());
  }

  /// Elements in the order of the boxes; each box's as they lie in the file, sorted.
  std::vector<uint64_t> read(const RankLayout& layout, uint64_t rank) const {
    std::vector<uint64_t> out;
    auto boxes = boxes_of_rank(layout, *layout.rule("w"), rank, tensor);
    REQUIRE_MESSAGE(boxes, (boxes ? "" : boxes.error().text()));
    for (const Region& box : *boxes) {
      std::vector<uint64_t> here;
      for (const StridedRead& read : reads_of(tensor, box)) {
        std::vector<uint64_t> starts = {read.range.offset};
        for (const auto& repeat : read.repeat) {
          std::vector<uint64_t> next;
          for (uint64_t start : starts) {
            for (uint64_t i = 0; i < repeat.count; ++i) next.push_back(start + i * repeat.stride);
          }
          starts = next;
        }
        CHECK(read.bytes() == starts.size() * read.range.length);
        for (uint64_t start : starts) {
          for (uint64_t i = 0; i < read.range.length; ++i) here.push_back(file.at(start + i));
        }
      }
      CHECK(here.size() == *element_count(box.shape));
      std::sort(here.begin(), here.end());
      out.insert(out.end(), here.begin(), here.end());
    }
    return out;
  }
};

RankLayout layout_of(std::string_view json) {
  auto out = parse_layout(json);
  REQUIRE_MESSAGE(out, (out ? "" : out.error().text()));
  return *out;
}

std::string refusal(std::string_view json) {
  auto out = parse_layout(json);
  if (out) return "parsed";
  CHECK(out.error().code == Code::kUsage);
  return out.error().text();
}

using Numbers = std::vector<uint64_t>;

}  // namespace

TEST_CASE("rank plan: the guide's first table, TP 2 and then flattened over DP 3") {
  const RankLayout layout =
      layout_of(R"({"world": {"tp": 2, "dp": 3}, "tensors": {"**": {"cut": [[1, "tp"]], "flatten": "dp"}}})");
  REQUIRE(layout.ranks() == 6);
  for (Shape grid : {Shape{1, 1}, Shape{1, 2}, Shape{2, 3}, Shape{2, 1}}) {
    const Stored stored({2, 6}, grid);
    CHECK(stored.read(layout, 0) == Numbers{0, 1});
    CHECK(stored.read(layout, 2) == Numbers{2, 6});
    CHECK(stored.read(layout, 4) == Numbers{7, 8});
    CHECK(stored.read(layout, 1) == Numbers{3, 4});
    CHECK(stored.read(layout, 3) == Numbers{5, 9});
    CHECK(stored.read(layout, 5) == Numbers{10, 11});
  }
}

TEST_CASE("rank plan: the guide's second table, TP 6") {
  const RankLayout layout =
      layout_of(R"({"world": {"tp": 6, "dp": 1}, "tensors": {"**": {"cut": [[1, "tp"]], "flatten": "dp"}}})");
  for (uint64_t rank = 0; rank < 6; ++rank) {
    CHECK(Stored({2, 6}, {1, 2}).read(layout, rank) == Numbers{rank, rank + 6});
    CHECK(Stored({2, 6}, {2, 1}).read(layout, rank) == Numbers{rank, rank + 6});
  }
}

TEST_CASE("rank plan: the guide's 128 elements, saved by W ranks and loaded by V") {
  for (uint64_t saved : {1, 2, 4, 8, 16}) {
    const Stored stored({128}, {saved});
    for (uint64_t ranks : {1, 2, 4, 8, 32}) {
      const RankLayout layout =
          layout_of(R"({"world": )" + std::to_string(ranks) + R"(, "tensors": {"w": [[0, "rank"]]}})");
      for (uint64_t rank = 0; rank < ranks; ++rank) {
        Numbers wanted(128 / ranks);
        std::iota(wanted.begin(), wanted.end(), rank * wanted.size());
        CHECK(stored.read(layout, rank) == wanted);
      }
    }
  }
}

TEST_CASE("rank plan: any cuts of any grid: together the ranks have every element once") {
  for (Shape grid : {Shape{1, 1, 1}, Shape{4, 1, 1}, Shape{1, 3, 2}, Shape{2, 6, 4}}) {
    const Stored stored({4, 6, 8}, grid);
    for (const char* rule :
         {R"([[0, "a"], [1, "b"]])", R"([[-1, "a"], [0, "b"]])", R"({"cut": [[1, "b"]], "flatten": "a"})",
          R"({"flatten": "a", "cut": [[2, "b"]], "uneven": true})",
          R"({"cut": [[1, "a"], [1, "b"]], "uneven": true})"}) {
      const RankLayout layout =
          layout_of(std::string(R"({"world": {"a": 4, "b": 2}, "tensors": {"w": )") + rule + "}}");
      std::map<uint64_t, int> seen;
      for (uint64_t rank = 0; rank < layout.ranks(); ++rank) {
        for (uint64_t element : stored.read(layout, rank)) ++seen[element];
      }
      CAPTURE(rule);
      CHECK(seen.size() == 192);
      CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& item) { return item.second == 1; }));
    }
  }
}

TEST_CASE("rank plan: every stretch of a flattened box comes out in order") {
  const Stored stored({3, 4, 5}, {1, 2, 1});
  for (uint64_t parts = 1; parts <= 61; ++parts) {
    const RankLayout layout =
        layout_of(R"({"world": )" + std::to_string(parts) + R"(, "tensors": {"w": {"flatten": "rank"}}})");
    Numbers all;
    for (uint64_t rank = 0; rank < parts; ++rank) {
      const Numbers here = stored.read(layout, rank);
      all.insert(all.end(), here.begin(), here.end());
    }
    Numbers wanted(60);
    std::iota(wanted.begin(), wanted.end(), 0);
    CHECK(all == wanted);
  }
}

TEST_CASE("rank plan: the first glob counts; fixed offsets, replicas and nothing at all") {
  const RankLayout layout = layout_of(R"({"world": 2, "tensors": {"a.*": null, "a.**": [[0, 1, 4]], "w": []}})");
  CHECK(layout.rule("a.b")->skip);
  CHECK(layout.rule("a.b.c")->cuts[0].fragments == 4);
  CHECK(layout.rule("other") == nullptr);
  const Stored stored({8}, {2});
  CHECK(stored.read(layout, 1).size() == 8);
  auto part = boxes_of_rank(layout, *layout.rule("a.b.c"), 0, stored.tensor);
  REQUIRE(part);
  CHECK((*part)[0].offset == Shape{2});
  CHECK((*part)[0].shape == Shape{2});
  CHECK(boxes_of_rank(layout, *layout.rule("a.b"), 0, stored.tensor)->empty());
}

TEST_CASE("rank plan: columns are strided reads, encoded shards are read whole, filled ones not at all") {
  const Stored stored({100, 64}, {1, 1});
  auto reads = reads_of(stored.tensor, {{10, 8}, {50, 16}});
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].range.offset == 10 * 64 + 8);
  CHECK(reads[0].range.length == 16);
  REQUIRE(reads[0].repeat.size() == 1);
  CHECK(reads[0].repeat[0].count == 50);
  CHECK(reads[0].repeat[0].stride == 64);
  Tensor encoded = stored.tensor;
  encoded.shards[0].encoding = Encoding::kEncoded;
  encoded.shards[0].where.length = 77;
  reads = reads_of(encoded, {{10, 8}, {50, 16}});
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].whole);
  CHECK(reads[0].bytes() == 77);
  encoded.shards[0].encoding = Encoding::kFill;
  CHECK(reads_of(encoded, {{10, 8}, {50, 16}}).empty());
}

TEST_CASE("rank plan: scalars") {
  const RankLayout layout = layout_of(R"({"world": 3, "tensors": {"w": {"flatten": "rank"}}})");
  const Stored scalar({}, {});
  CHECK(scalar.read(layout, 0) == Numbers{0});
  CHECK(scalar.read(layout, 1).empty());
}

TEST_CASE("rank plan: what does not fit or is malformed is refused with its place") {
  const RankLayout layout = layout_of(R"({"world": 3, "tensors": {"w": [[0, "rank"]], "x": [[2, "rank"]]}})");
  const Stored stored({8, 3}, {1, 1});
  CHECK(boxes_of_rank(layout, *layout.rule("w"), 0, stored.tensor).error().text().find("not equal") !=
        std::string::npos);
  CHECK(boxes_of_rank(layout, *layout.rule("x"), 0, stored.tensor).error().text().find("axis 2") != std::string::npos);
  for (const char* json : {"",
                           "[]",
                           "{}",
                           "{\"world\": 2}",
                           R"({"world": 0, "tensors": {}})",
                           R"({"world": -1, "tensors": {}})",
                           R"({"world": 1.5, "tensors": {}})",
                           R"({"world": {"a": 0}, "tensors": {}})",
                           R"({"world": {"a": 99999999, "b": 99999999}, "tensors": {}})",
                           R"({"world": 2, "tensors": []})",
                           R"({"world": 2, "tensors": {"w": 3}})",
                           R"({"world": 2, "tensors": {"w": [3]}})",
                           R"({"world": 2, "tensors": {"w": [[0]]}})",
                           R"({"world": 2, "tensors": {"w": [[0, "tp"]]}})",
                           R"({"world": 2, "tensors": {"w": [[0, 1]]}})",
                           R"({"world": 2, "tensors": {"w": [[0, 4, 4]]}})",
                           R"({"world": 2, "tensors": {"w": [[0, "rank", 1]]}})",
                           R"({"world": 2, "tensors": {"w": [["0", "rank"]]}})",
                           R"({"world": 2, "tensors": {"w": {"cuts": []}}})",
                           R"({"world": 2, "tensors": {"w": {"flatten": 3}}})",
                           R"({"world": 2, "tensors": {"w": {"uneven": 1}}})",
                           R"({"world": 2, "tensors": {}, "more": 1})",
                           R"({"world": 2, "tensors": {"w": [[18446744073709551615, "rank"]]}})"}) {
    CAPTURE(json);
    CHECK(refusal(json) != "parsed");
  }
}
