#include <fmt/format.h>
#include <sys/stat.h>

#include <numeric>

#include "formats/zarr/hierarchy.h"
#include "formats/zarr/shard_index.h"
#include "formats/zarr/zarr_json.h"
#include "formats/zarr/zarray.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
namespace fs = std::filesystem;

namespace {

const std::string kBytes = R"({"name": "bytes", "configuration": {"endian": "little"}})";

std::string array_json(const std::string& shape, const std::string& chunks, const std::string& dtype = "int16",
                       const std::string& codecs = kBytes, const std::string& fill = "0",
                       const std::string& more = "") {
  return fmt::format(
      R"({{"zarr_format": 3, "node_type": "array", "shape": {}, "data_type": "{}", "chunk_grid": {{"name": "regular",
    "configuration": {{"chunk_shape": {}}}}}, "chunk_key_encoding": {{"name": "default"}},)"
    R"( "codecs": [{}], "fill_value": {}{}}})",
      shape, dtype, chunks, codecs, fill, more);
}

std::string sharding_json(const std::string& inner, const std::string& location = "end",
                          const std::string& index = kBytes + R"(, {"name": "crc32c"})",
                          const std::string& codecs = kBytes) {
  return fmt::format(
      R"({{"name": "sharding_indexed", "configuration": {{"chunk_shape": {}, "codecs": [{}],)"
      R"( "index_codecs": [{}], "index_location": "{}"}}}})",
      inner, codecs, index, location);
}

template <class Value>
std::string raw(std::initializer_list<Value> values) {
  std::string out;
  for (Value v : values) out.append(reinterpret_cast<const char*>(&v), sizeof v);
  return out;
}

std::string with_crc(const std::string& data) {
  return data + raw({crc32c(0, as_bytes(data))});
}

/// One array of int16 below a temporary folder.
struct Array {
  TempDir dir;
  fs::path path = dir.path / "a.zarr";
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    REQUIRE(io::write_file(path / name, text));
  }
  std::string sha() const {
    auto catalog = open_ok(path);
    REQUIRE(catalog.tensors.size() == 1);
    CHECK(catalog.tensors[0].key == "a");
    return tensor_sha256(catalog, catalog.tensors[0]);
  }
};

std::string hash(std::initializer_list<int16_t> values) { return sha256_hex(as_bytes(raw(values))); }

std::string why_not_parsed(const std::string& json) {
  auto array = parse_zarr_json(json);
  return array ? "read" : array.error().message;
}

constexpr uint64_t kNone = UINT64_MAX;

}  // namespace

TEST_CASE("zarr3: chunks lie under c/ and absent ones hold the fill value") {
  Array a;
  a.put("zarr.json", array_json("[3, 2]", "[1, 2]", "int16", kBytes, "-2"));
  a.put("c/1/0", raw<int16_t>({5, 6}));
  CHECK(a.sha() == hash({-2, -2, 5, 6, -2, -2}));
}

TEST_CASE("zarr3: byte order and transpose are undone") {
  Array a;
  a.put(
      "zarr.json",
      array_json(
          "[2, 3]", "[2, 3]", "int16",
          R"({"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes",)"
          R"( "configuration": {"endian": "big"}})"));
  a.put("c/0/0", std::string("\0\0\0\3\0\1\0\4\0\2\0\5", 12));
  CHECK(a.sha() == hash({0, 1, 2, 3, 4, 5}));
}

TEST_CASE(
    "zarr3: inner chunks of a shard are shards of their own, absent ones fill, what lies over the edge is left out") {
  for (const char* location : {"start", "end"}) {
    Array a;
    a.put("zarr.json", array_json("[3]", "[4]", "int16", sharding_json("[1]", location), "9"));
    const bool start = std::string(location) == "start";
    const uint64_t base = start ? 68 : 0;
    const std::string index = with_crc(raw<uint64_t>({base + 2, 2, kNone, kNone, base, 2, kNone, kNone})),
                      data = raw<int16_t>({7, 8});
    a.put("c/0", start ? index + data : data + index);
    CHECK(a.sha() == hash({8, 9, 7}));
    auto catalog = open_ok(a.path);
    REQUIRE(catalog.tensors[0].shards.size() == 3);
    CHECK(catalog.tensors[0].shards[0].encoding == tensor::Encoding::kRaw);
    CHECK(catalog.tensors[0].shards[0].where.offset == base + 2);
    ReadOptions metadata_only;
    metadata_only.locate_data = false;
    catalog = open_ok(a.path, metadata_only);
    CHECK(catalog.tensors[0].shards.size() == 3);
    CHECK(catalog.tensors[0].shards[0].where.length == 0);
  }
}

TEST_CASE("zarr3: a shard's index that is cut, lies or has a wrong checksum is damage, at every byte") {
  Array a;
  a.put("zarr.json", array_json("[4]", "[4]", "int16", sharding_json("[2]")));
  const std::string good = raw<int16_t>({1, 2, 3, 4}) + with_crc(raw<uint64_t>({0, 4, 4, 4}));
  a.put("c/0", good);
  CHECK(a.sha() == hash({1, 2, 3, 4}));
  for (size_t n = 0; n < good.size(); ++n) {
    a.put("c/0", good.substr(0, n));
    CHECK(open_error(a.path, Code::kCorrupt) != "opened");
  }
  for (size_t i = 8; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    a.put("c/0", bad);
    CHECK(open_error(a.path, Code::kCorrupt).find("checksum") != std::string::npos);
  }
  auto lie = [&](std::initializer_list<uint64_t> entries) {
    a.put("c/0", raw<int16_t>({1, 2, 3, 4}) + with_crc(raw(entries)));
    return open_error(a.path, Code::kCorrupt);
  };
  CHECK(lie({0, 4, 0, 4}).find("overlaps") != std::string::npos);
  CHECK(lie({0, 4, 6, 4}).find("overlaps") != std::string::npos);
  CHECK(lie({0, 4, 44, 4}).find("past its end") != std::string::npos);
  CHECK(lie({0, 4, kNone - 3, 4}).find("past its end") != std::string::npos);
  CHECK(lie({0, 4, 4, kNone}).find("past its end") != std::string::npos);
  CHECK(lie({0, 4, 4, 3}).find("wrong size") != std::string::npos);
  CHECK(lie({0, 4, 4, 0}).find("wrong size") != std::string::npos);
  ReadOptions tolerant;
  tolerant.tolerate_damage = true;
  CHECK(open_ok(a.path, tolerant).damage.size() == 1);
}

TEST_CASE("zarr3: a shard with more inner chunks than its file can index is refused before anything is made for them") {
  Array a;
  a.put("zarr.json", array_json("[1099511627776]", "[1099511627776]", "int8", sharding_json("[1]")));
  a.put("c/0", std::string(100, 'x'));
  CHECK(open_error(a.path, Code::kCorrupt).find("limit") != std::string::npos);
  a.put("zarr.json", array_json("[1000000]", "[1000000]", "int8", sharding_json("[1]")));
  CHECK(open_error(a.path, Code::kCorrupt).find("too short") != std::string::npos);
}

TEST_CASE("zarr3: fill values in all their forms") {
  auto fill = [](const char* dtype, const char* value) -> std::string {
    auto array = parse_zarr_json(array_json("[1]", "[1]", dtype, kBytes, value));
    if (!array) return "refused";
    std::string out;
    for (std::byte b : array->fill) out += fmt::format("{:02x}", static_cast<unsigned>(b));
    return out;
  };
  CHECK(fill("float32", "\"0x7fc00001\"") == "0100c07f");
  CHECK(fill("float32", "\"0x7fc0\"") == "refused");
  CHECK(fill("float32", "\"0x7fc0000g\"") == "refused");
  CHECK(fill("bfloat16", "\"0x7fc1\"") == "c17f");
  CHECK(fill("bfloat16", "1.0") == "803f");
  CHECK(fill("float16", "\"-Infinity\"") == "00fc");
  CHECK(fill("complex64", "[\"NaN\", \"0x3f800000\"]") == "0000c07f0000803f");
  CHECK(fill("bool", "true") == "01");
  CHECK(fill("bool", "2") == "refused");
  CHECK(fill("uint8", "-1") == "refused");
  CHECK(fill("float8_e4m3fn", "1.0") == "38");
  CHECK(fill("float8_e4m3fn", "448") == "7e");
  CHECK(fill("float8_e4m3fn", "449") == "refused");
  CHECK(fill("float8_e4m3fn", "\"NaN\"") == "7f");
  CHECK(fill("float8_e4m3fn", "-0.0") == "80");
  CHECK(fill("float8_e5m2", "\"-Infinity\"") == "fc");
  CHECK(fill("float8_e4m3fnuz", "1.0") == "40");
  CHECK(fill("float8_e5m2fnuz", "\"NaN\"") == "80");
  CHECK(fill("float8_e8m0fnu", "1.0") == "7f");
  CHECK(fill("float8_e8m0fnu", "0.0") == "refused");
  CHECK(fill("float8_e5m2", "\"0x01\"") == "01");
  CHECK(fill("int64", "null") == "0000000000000000");
}

TEST_CASE("zarr3: what is not read is refused by name") {
  auto codec = [](const std::string& codecs) { return why_not_parsed(array_json("[4]", "[4]", "int16", codecs)); };
  CHECK(codec(kBytes) == "read");
  CHECK(codec(R"({"name": "vlen-utf8"})").find("vlen-utf8") != std::string::npos);
  CHECK(codec(kBytes + R"(, {"name": "numcodecs.lzma"})").find("lzma") != std::string::npos);
  CHECK(codec(kBytes + R"(, {"name": "brotli"})").find("brotli") != std::string::npos);
  CHECK(codec(R"({"name": "bytes"})").find("no byte order") != std::string::npos);
  CHECK(codec("").find("no codec makes bytes") != std::string::npos);
  CHECK(codec(R"({"name": "transpose", "configuration": {"order": [1]}}, )" + kBytes).find("no permutation") !=
        std::string::npos);
  CHECK(codec(sharding_json("[3]")).find("do not divide") != std::string::npos);
  CHECK(codec(sharding_json("[0]")).find("do not divide") != std::string::npos);
  CHECK(codec(sharding_json("[2]") + R"(, {"name": "gzip"})").find("behind sharding_indexed") != std::string::npos);
  CHECK(codec(sharding_json("[2]", "middle")).find("index_location") != std::string::npos);
  CHECK(codec(sharding_json("[2]", "end", kBytes + R"(, {"name": "gzip"})")).find("compressed shard index") !=
        std::string::npos);
  std::string deep = kBytes;
  for (int i = 0; i < 6; ++i) deep = sharding_json("[2]", "end", kBytes, deep);
  CHECK(codec(deep).find("this deep") != std::string::npos);
  CHECK(why_not_parsed(array_json("[4]", "[4]", "string")).find("string") != std::string::npos);
  CHECK(why_not_parsed(array_json("[4]", "[4]", "r16")).find("r16") != std::string::npos);
  CHECK(why_not_parsed(array_json("[4]", "[4]", "int16", kBytes, "0", R"(, "extra": 1)")).find("extra") !=
        std::string::npos);
  CHECK(why_not_parsed(array_json("[4]", "[4]", "int16", kBytes, "0", R"(, "extra": {"must_understand": false})")) ==
        "read");
  CHECK(why_not_parsed(array_json("[4]", "[4]", "int16", kBytes, "0", R"(, "storage_transformers": [{"name": "x"}])"))
            .find("transformers") != std::string::npos);
  CHECK(why_not_parsed(array_json("[4]", "[4]", "int16", kBytes, "\"x\"")).find("fill_value") != std::string::npos);
}

TEST_CASE(
    "zarr3: zarr.json cut at every byte, changed at every byte, or lying about lengths is refused or read, never "
    "more") {
  const std::string good = array_json("[4, 6]", "[4, 6]", "int16", sharding_json("[2, 3]"));
  REQUIRE(parse_zarr_json(good));
  for (size_t n = 0; n < good.size(); ++n) CHECK(!parse_zarr_json(good.substr(0, n)));
  for (size_t i = 0; i < good.size(); ++i) {
    for (int value : std::initializer_list<int>{0, '"', '[', '9', '-', 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      auto array = parse_zarr_json(bad);
      if (array) CHECK(array->shape.size() == array->chunks.size());
    }
  }
  CHECK(why_not_parsed(array_json("[18446744073709551615, 2]", "[1, 1]")) != "read");
  CHECK(why_not_parsed(array_json("[18446744073709551616]", "[1]")) != "read");
  CHECK(why_not_parsed(array_json("[4]", "[0]")) != "read");
  CHECK(why_not_parsed(array_json("[4]", "[2, 2]")) != "read");
  CHECK(why_not_parsed(array_json("[-1]", "[2]")) != "read");
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  CHECK(why_not_parsed(array_json("[4]", "[4]", "int16", kBytes, deep)).find("nested") != std::string::npos);
  CHECK(!parse_zarray(deep, false));
}

TEST_CASE("zarr3: a group gives its arrays by path; consolidated metadata stands in for documents that are not there") {
  Array g;
  const std::string array = array_json("[2]", "[2]");
  const std::string group = R"({"zarr_format": 3, "node_type": "group", "attributes": {"step": 7})";
  g.put("zarr.json", group + "}");
  g.put("x/y/zarr.json", array);
  g.put("x/zarr.json", group + "}");
  g.put("w/zarr.json", array);
  g.put("w/c/0", raw<int16_t>({1, 2}));
  auto catalog = open_ok(g.path);
  REQUIRE(catalog.tensors.size() == 2);
  CHECK(catalog.tensors[1].key == "x/y");
  CHECK(catalog.metadata_json.find("step") != std::string::npos);
  CHECK(catalog.warnings.empty());
  g.put("zarr.json",
        group + R"(, "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {"w": )" +
            array + R"(, "x": )" + group + "}, \"x/y\": " + array_json("[3]", "[2]") + ", \"z\": " + array + "}}}");
  catalog = open_ok(g.path);
  CHECK(catalog.tensors.size() == 3);
  CHECK(find(catalog, "x/y")->shape == tensor::Shape{2});
  REQUIRE(catalog.warnings.size() == 1);
  CHECK(catalog.warnings[0].find("x/y: described otherwise") != std::string::npos);
  g.put("zarr.json", group + R"(, "consolidated_metadata": {"metadata": {"../w": )" + array + "}}}");
  CHECK(open_error(g.path, Code::kCorrupt).find("leads out") != std::string::npos);
  g.put("zarr.json", group + R"(, "consolidated_metadata": {"metadata": [)" + array + "]}}");
  CHECK(open_error(g.path, Code::kCorrupt).find("no JSON object") != std::string::npos);
}

TEST_CASE("zarr: documents that are pipes are refused, not waited for; a link to one is followed") {
  Array g;
  const std::string array = array_json("[2]", "[2]");
  g.put("w/zarr.json", array);
  fs::create_directories(g.path / "p");
  REQUIRE(::mkfifo((g.path / "p/zarr.json").c_str(), 0600) == 0);
  CHECK(open_error(g.path, Code::kCorrupt).find("p/zarr.json") != std::string::npos);
  fs::remove(g.path / "p/zarr.json");
  fs::create_symlink(g.path / "w/zarr.json", g.path / "p/zarr.json");
  CHECK(open_ok(g.path).tensors.size() == 2);
}

TEST_CASE("zarr: filters are undone as numcodecs does") {
  auto undo = [](const std::string& id, const std::string& config, const std::string& stored, size_t bytes) {
    auto codec = parse_numcodec(id, config);
    REQUIRE(codec);
    std::string out(bytes, '\0');
    auto done =
        decode_steps(std::span(&**codec, 1), as_bytes(stored), {reinterpret_cast<std::byte*>(out.data()), out.size()});
    return done ? out : "refused: " + done.error().message;
  };
  CHECK(undo("delta", R"({"dtype": "<i4", "astype": "|i1"})", raw<int8_t>({100, 100, -1}), 12) ==
        raw<int32_t>({100, 200, 199}));
  CHECK(undo("delta", R"({"dtype": "|u1"})", raw<uint8_t>({200, 100}), 2) == raw<uint8_t>({200, 44}));
  CHECK(undo("delta", R"({"dtype": ">i2"})", std::string("\0\1\0\1", 4), 4) == std::string("\0\1\0\2", 4));
  CHECK(undo("shuffle", R"({"elementsize": 2})", "ACBD", 4) == "ABCD");
  CHECK(undo("shuffle", R"({"elementsize": 3})", "ACBD", 4).find("whole number") != std::string::npos);
  CHECK(undo("fixedscaleoffset", R"({"dtype": "<f4", "astype": "|u1", "offset": -1, "scale": 2})", raw<uint8_t>({0, 3}),
             8) == raw<float>({-1, 0.5}));
  CHECK(undo("crc32c", "{}", with_crc("abcd"), 4) == "abcd");
  CHECK(undo("crc32c", "{}", "abcdefgh", 4).find("checksum") != std::string::npos);
  CHECK(undo("crc32c", "{}", "abc", 0).find("too short") != std::string::npos);
  CHECK(undo("delta", R"({"dtype": "<i4"})", "abc", 8).find("wrong size") != std::string::npos);
  CHECK(crc32c(0, as_bytes("123456789")) == 0xe3069283);
}

TEST_CASE("axes: every order of four axes gives the elements where they belong") {
  const tensor::Shape shape = {3, 35, 2, 33};
  tensor::AxisOrder axes = {0, 1, 2, 3};
  std::vector<uint32_t> wanted(3 * 35 * 2 * 33);
  std::iota(wanted.begin(), wanted.end(), 0);
  do {
    std::vector<uint32_t> stored(wanted.size()), got(wanted.size());
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      uint64_t rest = i, at[4], place = 0;
      for (size_t axis = 4; axis-- > 0; rest /= shape[axis]) at[axis] = rest % shape[axis];
      for (uint32_t axis : axes) place = place * shape[axis] + at[axis];
      stored[place] = i;
    }
    tensor::to_row_major(shape, axes, 4, std::as_bytes(std::span(stored)), std::as_writable_bytes(std::span(got)));
    CHECK(got == wanted);
  } while (std::next_permutation(axes.begin(), axes.end()));
}
