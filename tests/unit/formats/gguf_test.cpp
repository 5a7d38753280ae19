#include "formats/gguf/header.h"

#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
namespace fs = std::filesystem;

namespace {

/// Builds a file of one version, piece by piece.
struct Gguf {
  uint32_t version;
  std::string bytes;

  explicit Gguf(uint64_t tensors, uint64_t pairs, uint32_t v = 3) : version(v), bytes("GGUF") {
    u32(v).size(tensors).size(pairs);
  }
  template <class T>
  Gguf& put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Gguf& u32(uint32_t value) { return put(value); }
  Gguf& u64(uint64_t value) { return put(value); }
  Gguf& size(uint64_t value) { return version == 1 ? u32(static_cast<uint32_t>(value)) : u64(value); }
  Gguf& text(const std::string& value) {
    size(value.size());
    bytes += value;
    return *this;
  }
  Gguf& tensor(const std::string& name, std::initializer_list<uint64_t> dimensions, uint32_t type, uint64_t offset) {
    text(name).u32(static_cast<uint32_t>(dimensions.size()));
    for (uint64_t n : dimensions) size(n);
    return u32(type).u64(offset);
  }
  Gguf& pad(size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
};

/// Two pairs, a float tensor of shape (2, 3) and a quantised one of shape (1, 32).
Gguf small(uint32_t version = 3) {
  Gguf g(2, 2, version);
  g.text("general.name").u32(8).text("tiny");
  g.text("tokens").u32(9).u32(8).size(20);
  for (int i = 0; i < 20; ++i) g.text("t");
  g.tensor("w", {3, 2}, 0, 0).tensor("q", {32, 1}, 2, 32).pad();
  for (float f : {0.F, 1.F, 2.F, 3.F, 4.F, 5.F}) g.put(f);
  g.pad();
  g.bytes += "0123456789abcdefgh";
  return g;
}

std::string why(const Gguf& g) {
  auto header = parse_gguf_header(as_bytes(g.bytes));
  return !header ? header.error().message : *header ? "read" : "short";
}

struct File {
  TempDir dir;
  fs::path path = dir.path / "m.gguf";
  explicit File(const std::string& bytes) { REQUIRE(io::write_file(path, bytes)); }
};

}  // namespace

TEST_CASE("gguf: tensors have numpy's shapes, quantised ones are rows of bytes, metadata is kept") {
  for (uint32_t version : {1U, 2U, 3U}) {
    File file(small(version).bytes);
    auto catalog = open_ok(file.path);
    REQUIRE(catalog.tensors.size() == 2);
    CHECK(catalog.format == "gguf");
    CHECK(find(catalog, "w")->shape == tensor::Shape{2, 3});
    CHECK(find(catalog, "q")->shape == tensor::Shape{1, 18});
    CHECK(find(catalog, "q")->dtype == tensor::DType::kUint8);
    CHECK(tensor_sha256(catalog, *find(catalog, "q")) == sha256_hex(as_bytes("0123456789abcdefgh")));
    const auto metadata = nlohmann::json::parse(catalog.metadata_json);
    CHECK(metadata["version"] == version);
    CHECK(metadata["metadata"]["general.name"] == "tiny");
    CHECK(metadata["metadata"]["tokens"]["elements"] == 20);
    CHECK(metadata["metadata"]["tokens"]["first"].size() == 16);
    CHECK(metadata["quantised"]["q"] == "Q4_0");
    REQUIRE(catalog.warnings.size() == 1);
    CHECK(catalog.warnings[0].find("1 tensor of type Q4_0") == 0);
  }
}

TEST_CASE("gguf: values of every type become JSON") {
  Gguf g(0, 9);
  g.text("a").u32(0).put<uint8_t>(255);
  g.text("b").u32(1).put<int8_t>(-1);
  g.text("c").u32(6).put(0.1F);
  g.text("d").u32(7).put<uint8_t>(1);
  g.text("e").u32(12).put(std::numeric_limits<double>::infinity());
  g.text("f").u32(9).u32(9).size(2).u32(5).size(1).put<int32_t>(-7).u32(5).size(0);
  g.text("g").u32(10).u64(UINT64_MAX);
  g.text("h").u32(9).u32(4).size(100);
  for (uint32_t i = 0; i < 100; ++i) g.u32(i);
  g.text("i\n\xff").u32(8).text("\"\x01");
  auto header = parse_gguf_header(as_bytes(g.bytes));
  REQUIRE(header);
  REQUIRE(*header);
  const auto json = nlohmann::json::parse((*header)->metadata);
  CHECK(json["a"] == 255);
  CHECK(json["b"] == -1);
  CHECK(json["c"] == 0.1);
  CHECK(json["d"] == true);
  CHECK(json["e"] == "Infinity");
  CHECK(json["f"].dump() == "[[-7],[]]");
  CHECK(json["g"] == UINT64_MAX);
  CHECK(json["h"]["first"][15] == 15);
  CHECK(json["i\n\xef\xbf\xbd"] == "\"\x01");
}

TEST_CASE("gguf: cut at every byte a file is refused; changed at any byte of its header it does no harm") {
  const std::string good = small().bytes;
  File file(good);
  for (size_t n = 4; n < good.size(); ++n) {
    REQUIRE(io::write_file(file.path, good.substr(0, n)));
    CHECK(open_error(file.path, Code::kCorrupt) != "opened");
  }
  for (size_t i = 0; i + 50 < good.size(); ++i) {
    for (int value : {0, 1, 0x7f, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      (void)parse_gguf_header(as_bytes(bad));
      REQUIRE(io::write_file(file.path, bad));
      (void)formats::open_checkpoint(file.path, {});
    }
  }
}

TEST_CASE("gguf: lying lengths, counts, types and alignments are refused") {
  CHECK(why(Gguf(UINT64_MAX, 0)) == "short");
  CHECK(why(Gguf(0, UINT64_MAX)) == "short");
  CHECK(why(Gguf(0, 1).u64(UINT64_MAX)) == "short");
  CHECK(why(Gguf(0, 1).text("k").u32(9).u32(10).u64(UINT64_MAX / 2)) == "short");
  CHECK(why(Gguf(0, 1).text("k").u32(9).u32(8).u64(UINT64_MAX)) == "short");
  CHECK(why(Gguf(0, 1).text("k").u32(13)).find("unknown type 13") != std::string::npos);
  CHECK(why(Gguf(0, 1).text("k").u32(9).u32(13).u64(1)).find("unknown type 13") != std::string::npos);
  Gguf nested(0, 1);
  nested.text("k").u32(9);
  for (int i = 0; i < 10; ++i) nested.u32(9).u64(1);
  CHECK(why(nested).find("nested") != std::string::npos);
  CHECK(why(Gguf(0, 1).text("general.alignment").u32(4).u32(0)).find("alignment") != std::string::npos);
  CHECK(why(Gguf(0, 1).text("general.alignment").u32(4).u32(24)).find("alignment") != std::string::npos);
  CHECK(why(Gguf(0, 1).text("general.alignment").u32(4).u32(64)) == "read");
  CHECK(why(Gguf(1, 0).text("t").u32(9)).find("9 axes") != std::string::npos);
  CHECK(why(Gguf(1, 0).tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0)).find("counted") != std::string::npos);
  CHECK(why(Gguf(1, 0).tensor("t", {UINT64_MAX / 32 * 32}, 15, 0)).find("whole number") != std::string::npos);
  CHECK(why(Gguf(1, 0).tensor("t", {33}, 2, 0)).find("whole number") != std::string::npos);
  CHECK(why(Gguf(1, 0).tensor("t", {4}, 0, 16)).find("aligned") != std::string::npos);
  CHECK(why(Gguf(1, 0).tensor("t", {4}, 0, UINT64_MAX - 31)).find("counted") != std::string::npos);
  CHECK(why(Gguf(0, 0, 4)).find("version 4") != std::string::npos);
  CHECK(why(Gguf(0, 0, 0x03000000)).find("big-endian") != std::string::npos);
  File past(Gguf(1, 0).tensor("t", {4}, 0, 1 << 20).pad().bytes);
  CHECK(open_error(past.path, Code::kCorrupt).find("past the end") != std::string::npos);
  File overlap(Gguf(2, 0).tensor("a", {16}, 0, 0).tensor("b", {4}, 0, 32).pad().bytes + std::string(64, 'x'));
  CHECK(open_error(overlap.path, Code::kCorrupt).find("overlaps a") != std::string::npos);
  File unknown(Gguf(1, 0).tensor("t", {4}, 99, 0).pad().bytes);
  CHECK(open_ok(unknown.path).unsupported.size() == 1);
}

TEST_CASE("gguf: the parts of a split model in one folder are read as one, a missing part is damage") {
  TempDir dir;
  auto part = [&](int number) {
    Gguf g(1, 2);
    g.text("split.no").u32(2).put(static_cast<uint16_t>(number)).text("split.count").u32(2).put<uint16_t>(2);
    g.tensor("t" + std::to_string(number), {1}, 24, 0).pad();
    REQUIRE(io::write_file(dir.path / ("m-0000" + std::to_string(number + 1) + "-of-00002.gguf"), g.bytes + "x"));
  };
  part(0);
  CHECK(open_error(dir.path, Code::kCorrupt).find("one of 2 parts") != std::string::npos);
  CHECK(open_ok(dir.path / "m-00001-of-00002.gguf").warnings.size() == 1);
  part(1);
  CHECK(open_ok(dir.path).tensors.size() == 2);
}
