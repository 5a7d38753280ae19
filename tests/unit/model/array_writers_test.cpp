#include "lib/model/convert/convert.h"
#include "lib/tensor/selection.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
using namespace ckpt::model;
using tensor::DType;
namespace fs = std::filesystem;

namespace {

/// A safetensors file: every dtype under its name, a scalar, an empty tensor, and one of 1000 x 300.
struct Source {
  TempDir dir;
  fs::path path = dir.path / "m.safetensors";
  std::map<std::string, std::string> hashes;

  Source() {
    const std::pair<const char*, const char*> kTypes[] = {{"BOOL", "bool"},
                                                          {"U8", "uint8"},
                                                          {"I8", "int8"},
                                                          {"U16", "uint16"},
                                                          {"I16", "int16"},
                                                          {"U32", "uint32"},
                                                          {"I32", "int32"},
                                                          {"U64", "uint64"},
                                                          {"I64", "int64"},
                                                          {"F16", "float16"},
                                                          {"BF16", "bfloat16"},
                                                          {"F32", "float32"},
                                                          {"F64", "float64"},
                                                          {"C64", "complex64"},
                                                          {"F8_E4M3", "float8_e4m3fn"},
                                                          {"F8_E5M2", "float8_e5m2"},
                                                          {"F8_E8M0", "float8_e8m0fnu"}};
    for (const auto& type : kTypes)
      add(std::string("types/") + type.second, type.first, "[2,3]",
          6 * tensor::item_size(*tensor::dtype_from_name(type.second)));
    add("scalar", "F32", "[]", 4);
    add("empty", "F32", "[0,3]", 0);
    add("model.large", "F32", "[1000,300]", 1'200'000);
    uint64_t length = header_.size() + 1;
    REQUIRE(io::write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + header_ + "}" + data_));
  }
  void add(const std::string& key, const std::string& dtype, const std::string& shape, size_t bytes) {
    std::string content(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i)
      content[i] = static_cast<char>(dtype == "BOOL" ? i % 2 : (i * 7 + key.size()) % 251);
    header_ += (header_.empty() ? "{\"" : ",\"") + key + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
               R"(,"data_offsets":[)" + std::to_string(data_.size()) + "," + std::to_string(data_.size() + bytes) +
               "]}";
    data_ += content;
    hashes[key] = sha256_hex(as_bytes(content));
  }

 private:
  std::string header_, data_;
};

Result<ConvertReport> write(const fs::path& source, const fs::path& destination, const std::string& to,
                            std::function<void(ConvertRequest&)> more = {}) {
  ConvertRequest request;
  request.source = source;
  request.destination = destination;
  request.to = to;
  request.durable = false;
  request.verify = true;
  if (more) more(request);
  return convert(request, null_progress(), Cancel());
}

void check(const fs::path& path, const Source& source) {
  auto catalog = open_ok(path);
  CHECK(catalog.tensors.size() == source.hashes.size());
  CHECK(catalog.warnings.empty());
  for (const auto& expected : source.hashes) {
    const tensor::Tensor* t = find(catalog, expected.first);
    REQUIRE_MESSAGE(t != nullptr, expected.first);
    if (expected.first.starts_with("types/")) CHECK(tensor::dtype_name(t->dtype) == expected.first.substr(6));
    CHECK_MESSAGE(tensor_sha256(catalog, *t, 1 << 16) == expected.second, expected.first);
  }
}

}  // namespace

TEST_CASE("zarr3 writer: every type and shape comes back, in the pieces asked for, with padded chunks at the edge") {
  Source source;
  REQUIRE(write(source.path, source.dir.path / "whole", "zarr3"));
  check(source.dir.path / "whole", source);
  REQUIRE(write(source.path, source.dir.path / "slabs", "zarr3",
                [](ConvertRequest& r) { r.write.grid.shard_size = 360'000; }));
  check(source.dir.path / "slabs", source);
  CHECK(fs::file_size(source.dir.path / "slabs/model.large/c.3.0") ==
        fs::file_size(source.dir.path / "slabs/model.large/c.0.0"));
  REQUIRE(write(source.path, source.dir.path / "grid", "zarr3",
                [](ConvertRequest& r) { r.write.grid.rules = {*tensor::parse_grid_rule("model.large=3x7")}; }));
  check(source.dir.path / "grid", source);
  auto catalog = open_ok(source.dir.path / "grid");
  CHECK(find(catalog, "model.large")->shards.size() == 21);
  // And from a grid with edges, as it is stored.
  REQUIRE(write(source.dir.path / "grid", source.dir.path / "again", "zarr3"));
  check(source.dir.path / "again", source);
}

TEST_CASE("zarr3 writer: pieces that no grid has are cut anew") {
  TempDir dir;
  auto part = [](const std::string& offset, const std::string& length) {
    return R"({"__metadata__":{"DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [)" + offset +
           R"(]}}"},"w":{"dtype":"U8","shape":[)" + length + R"(],"data_offsets":[0,)" + length + "]}}";
  };
  auto put = [&](const char* name, const std::string& header, const std::string& data) {
    uint64_t length = header.size();
    REQUIRE(io::write_file(dir.path / "src" / name,
                           std::string(reinterpret_cast<const char*>(&length), 8) + header + data));
  };
  fs::create_directories(dir.path / "src");
  put("shard-00001-model-00001-of-00001.safetensors", part("0", "1"), "a");
  put("shard-00002-model-00001-of-00001.safetensors", part("1", "3"), "bcd");
  auto report = write(dir.path / "src", dir.path / "dst", "zarr3");
  REQUIRE_MESSAGE(report, (report ? "" : report.error().text()));
  CHECK(std::any_of(report->notes.begin(), report->notes.end(),
                    [](const std::string& note) { return note.find("no grid of equal") != std::string::npos; }));
  auto catalog = open_ok(dir.path / "dst");
  CHECK(tensor_sha256(catalog, catalog.tensors[0]) == sha256_hex(as_bytes("abcd")));
}

TEST_CASE("npy writer: every type and shape comes back, those that numpy lacks through dtypes.json") {
  Source source;
  REQUIRE(write(source.path, source.dir.path / "dst", "npy"));
  check(source.dir.path / "dst", source);
  CHECK(fs::file_size(source.dir.path / "dst/model.large.npy") == 4096 + 1'200'000);
  const auto types = read_json(source.dir.path / "dst/dtypes.json");
  CHECK(types.size() == 4);
  CHECK(types["types/bfloat16"] == "bfloat16");
  REQUIRE(io::write_file(source.dir.path / "dst/dtypes.json", R"({"types/bfloat16": "float7"})"));
  CHECK(open_error(source.dir.path / "dst", Code::kCorrupt).find("names no dtype") != std::string::npos);
  auto none = write(source.path, source.dir.path / "none", "npy", [](ConvertRequest& r) { r.select.exclude = {"**"}; });
  REQUIRE(!none);
  CHECK(none.error().code == Code::kUsage);
  CHECK(!fs::exists(source.dir.path / "none"));
}

TEST_CASE("array writers: keys that would leave the folder, or cannot be paths, are refused, each one by name") {
  for (const char* format : {"zarr3", "npy"}) {
    for (const char* key : {"../x", "a/../x", "/x", "a//x", "a/", "..", "", "a\\u0000b", "a\\nb"}) {
      TempDir dir;
      const std::string header = std::string(R"({")") + key + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
      uint64_t length = header.size();
      REQUIRE(io::write_file(dir.path / "m.safetensors",
                             std::string(reinterpret_cast<const char*>(&length), 8) + header + "x"));
      fs::create_directories(dir.path / "sub");
      auto report = write(dir.path / "m.safetensors", dir.path / "sub/dst", format);
      REQUIRE_MESSAGE(!report, key);
      CHECK(report.error().code == Code::kUsage);
      CHECK(report.error().causes.size() == 1);
      CHECK(!fs::exists(dir.path / "x"));
    }
  }
  TempDir dir;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a/b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
      R"("A":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  uint64_t length = header.size();
  REQUIRE(io::write_file(dir.path / "m.safetensors",
                         std::string(reinterpret_cast<const char*>(&length), 8) + header + "xyz"));
  auto zarr = write(dir.path / "m.safetensors", dir.path / "z", "zarr3");
  REQUIRE(!zarr);
  CHECK(zarr.error().causes[0].find("needs a folder") != std::string::npos);
  auto npy = write(dir.path / "m.safetensors", dir.path / "n", "npy");
  REQUIRE(npy);
  CHECK(std::any_of(npy->notes.begin(), npy->notes.end(),
                    [](const std::string& note) { return note.find("only in case") != std::string::npos; }));
}
