#include "lib/flash/layout.h"

#include <doctest/doctest.h>

#include "lib/flash/persist.h"

using namespace ckpt;
using namespace ckpt::flash;

namespace {

LayoutTensor tensor(std::string key, std::vector<uint64_t> shape) {
  LayoutTensor out;
  out.key = std::move(key);
  out.dtype = "float32";
  out.shape = out.global_shape = shape;
  out.global_offset.assign(shape.size(), 0);
  out.path = {{Step::Kind::kName, "model", 0}, {Step::Kind::kNumber, "", -3}, {Step::Kind::kIndex, "", 1}};
  return out;
}

BufferLayout two_tensors() {
  BufferLayout out;
  out.tensors = {tensor("a", {3, 5}), tensor("b", {7})};
  out.tensors[1].global_shape = {14};
  out.tensors[1].global_offset = {7};
  REQUIRE(place_tensors(out));
  return out;
}

}  // namespace

TEST_CASE("layout: tensors get places that do not meet, and come back from bytes as they were") {
  const BufferLayout layout = two_tensors();
  CHECK(layout.tensors[1].offset == 64);
  CHECK(layout.data_bytes == 128);
  const std::string text = encode_layout(layout);
  auto back = decode_layout(as_bytes(text));
  REQUIRE(back);
  CHECK(encode_layout(*back) == text);
  CHECK(back->tensors[1].bytes == 28);
  CHECK(back->tensors[0].path[1].number == -3);
}

TEST_CASE("layout: what is cut short is refused at every byte, and no flipped byte leads outside of the buffer") {
  const std::string text = encode_layout(two_tensors());
  for (size_t size = 0; size < text.size(); ++size) CHECK_FALSE(decode_layout(as_bytes(text).first(size)));
  CHECK_FALSE(decode_layout(as_bytes(text + "x")));
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      auto back = decode_layout(as_bytes(flipped));
      if (!back) continue;
      for (const LayoutTensor& one : back->tensors) CHECK(one.offset + one.bytes <= back->data_bytes);
    }
  }
}

TEST_CASE("layout: a part outside of its global shape, an unknown dtype and an overflow are refused by name") {
  BufferLayout layout = two_tensors();
  layout.tensors[1].global_offset = {8};
  CHECK(place_tensors(layout).error().subject == "b");
  layout = two_tensors();
  layout.tensors[0].dtype = "float33";
  CHECK(place_tensors(layout).error().text().find("float33") != std::string::npos);
  layout = two_tensors();
  layout.tensors[0].shape = layout.tensors[0].global_shape = {uint64_t{1} << 40, uint64_t{1} << 40};
  CHECK_FALSE(place_tensors(layout));
}

TEST_CASE("objects: they come back, and a lie about a length is refused") {
  const std::string text = encode_objects({{"step", ObjectKind::kValue, {{Step::Kind::kName, "step", 0}}, "bytes"},
                                           {"common", ObjectKind::kCommon, {}, ""}});
  auto back = decode_objects(as_bytes(text));
  REQUIRE(back);
  CHECK((*back)[0].bytes == "bytes");
  CHECK((*back)[1].kind == ObjectKind::kCommon);
  for (size_t size = 1; size < text.size(); ++size) CHECK_FALSE(decode_objects(as_bytes(text).first(size)));
  CHECK(decode_objects({})->empty());
}

TEST_CASE("ranks file: it comes back, and any flipped byte is found") {
  for (const std::map<uint32_t, std::string>& own : {std::map<uint32_t, std::string>{}, {{0, "its own"}}}) {
    RanksRecord record{12, 2, {{1, "layout", "objects", {Hash128{1, 2}}, own}}};
    const std::string text = encode_ranks(record);
    auto back = decode_ranks(as_bytes(text));
    REQUIRE(back);
    CHECK(back->step == 12);
    CHECK(back->ranks[0].hashes[0] == Hash128{1, 2});
    CHECK(back->ranks[0].own == own);
    for (size_t at = 0; at < text.size(); ++at) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      CHECK_FALSE(decode_ranks(as_bytes(flipped)));
    }
    for (size_t size = 0; size < text.size(); ++size) CHECK_FALSE(decode_ranks(as_bytes(text).first(size)));
  }
  RanksRecord lie{12, 2, {{1, "layout", "objects", {Hash128{1, 2}}, {{1, "of no tensor"}}}}};
  CHECK_FALSE(decode_ranks(as_bytes(encode_ranks(lie))));
}

TEST_CASE("ranks file: one of a newer ckpt is refused as such, where its hash is right") {
  std::string text = encode_ranks({12, 2, {{1, "layout", "objects", {Hash128{1, 2}}, {}}}});
  text.resize(text.size() - sizeof(Hash128));
  text[7] = '3';
  const Hash128 hash = xxh3_128(as_bytes(text));
  text.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  auto newer = decode_ranks(as_bytes(text));
  REQUIRE_FALSE(newer);
  CHECK(newer.error().code == Code::kUnsupported);
}

TEST_CASE("ranks file: what ranks may have otherwise is bounded for each, and for all that rank 0's agent holds") {
  CHECK(most_own(1) == 64 << 20);
  CHECK(most_own(8) == 64 << 20);
  CHECK(most_own(1024) == 512 << 10);
}
