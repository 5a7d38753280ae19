#include "formats/safetensors/header.h"

#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
namespace fs = std::filesystem;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  return out + header + data;
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
    R"("a":{"dtype":"I16","shape":[2,1],"data_offsets":[0,4]}})";

std::string why(const std::string& json, uint64_t bytes) {
  auto header = parse_safetensors_header(json, bytes);
  return header ? "read" : header.error().message;
}

}  // namespace

TEST_CASE("safetensors: a file gives its tensors and metadata") {
  TempDir dir;
  REQUIRE(io::write_file(dir.path / "m.safetensors", file_of(kHeader + "   ", "\x01\x02\x03\x04xyz")));
  auto catalog = open_ok(dir.path / "m.safetensors");
  REQUIRE(catalog.tensors.size() == 2);
  CHECK(catalog.tensors[0].shape == tensor::Shape{2, 1});
  CHECK(tensor_sha256(catalog, catalog.tensors[0]) == sha256_hex(as_bytes("\x01\x02\x03\x04")));
  CHECK(tensor_sha256(catalog, catalog.tensors[1]) == sha256_hex(as_bytes("xyz")));
  CHECK(catalog.metadata_json.find("\"pt\"") != std::string::npos);
}

TEST_CASE("safetensors: gaps, overlaps, wrong sizes, twins and foreign members are refused") {
  auto one = [](const std::string& begin, const std::string& end) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + begin + "," + end + "]}}";
  };
  CHECK(why(one("0", "4"), 4) == "read");
  CHECK(why(one("1", "5"), 5).find("gap") != std::string::npos);
  CHECK(why(one("0", "4"), 5).find("end at byte 4") != std::string::npos);
  CHECK(why(one("0", "5"), 5).find("do not fit") != std::string::npos);
  CHECK(why(one("4", "0"), 0).find("do not fit") != std::string::npos);
  CHECK(why(one("-1", "3"), 4) != "read");
  CHECK(why(one("0.0", "4"), 4) != "read");
  CHECK(
      why(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],)"
          R"("data_offsets":[1,3]}})",
          3)
          .find("overlaps") != std::string::npos);
  CHECK(
      why(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],)"
          R"("data_offsets":[2,4]}})",
          4)
          .find("two tensors") != std::string::npos);
  CHECK(why(R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2).find("twice") !=
        std::string::npos);
  CHECK(why(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}})", 2).find("unknown member") !=
        std::string::npos);
  CHECK(why(R"({"a":{"dtype":"U8","shape":[2]}})", 2).find("without") != std::string::npos);
  CHECK(why(R"({"a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}})", 2).find("U9") != std::string::npos);
  CHECK(why(R"({"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0).find("counted") !=
        std::string::npos);
  CHECK(why(R"({"__metadata__":{"a":1}})", 0) != "read");
  CHECK(why(R"({"__metadata__":{"a":{}}})", 0) != "read");
  CHECK(why("[]", 0) != "read");
  CHECK(why("{\"\xff\":{}}", 0) != "read");
  CHECK(why(std::string(100000, '{'), 0) != "read");
  CHECK(
      why(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],)"
          R"("data_offsets":[4,4]}})",
          4) == "read");
}

TEST_CASE(
    "safetensors: cut at every byte and lying about its length a file is refused, changed at any byte it does no "
    "harm") {
  TempDir dir;
  const fs::path path = dir.path / "m.safetensors";
  const std::string good = file_of(kHeader, "\x01\x02\x03\x04xyz");
  for (size_t n = 0; n < good.size(); ++n) {
    REQUIRE(io::write_file(path, good.substr(0, n)));
    CHECK(open_error(path, Code::kCorrupt) != "opened");
  }
  for (size_t i = 0; i < 8 + kHeader.size(); ++i) {
    for (int value : std::initializer_list<int>{0, 0x7f, 0xff, '"', '}', '9'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      REQUIRE(io::write_file(path, bad));
      (void)formats::open_checkpoint(path, {});
    }
  }
}

TEST_CASE("safetensors: a folder with an index is read as one, and what the index says too much is damage") {
  TempDir dir;
  REQUIRE(io::write_file(dir.path / "m-1.safetensors",
                         file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab")));
  REQUIRE(io::write_file(dir.path / "m-2.safetensors",
                         file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "c")));
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.json",
                         R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})"));
  CHECK(open_ok(dir.path).tensors.size() == 2);
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.json",
                         R"({"weight_map": {"a": "m-1.safetensors", "c": "m-2.safetensors"}})"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("c: the index names it") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.json", R"({"weight_map": {"a": "../m-1.safetensors"}})"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("leads out") != std::string::npos);
}

TEST_CASE("safetensors: a snapshot of the hub's cache, all links into blobs, is read and sound") {
  TempDir dir;
  const fs::path blobs = dir.path / "blobs", snapshot = dir.path / "snapshots/0123";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  auto put = [&](const std::string& name, const std::string& content) {
    REQUIRE(io::write_file(blobs / name, content));
    fs::create_symlink("../../blobs/" + name, snapshot / name);
  };
  put("m-1.safetensors", file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  CHECK(open_ok(snapshot).tensors.size() == 1);
  put("m-2.safetensors", file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "c"));
  put("model.safetensors.index.json", R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  auto catalog = open_ok(snapshot);
  REQUIRE(catalog.tensors.size() == 2);
  CHECK(tensor_sha256(catalog, catalog.tensors[0]) == sha256_hex(as_bytes("ab")));
  CHECK(open_ok(snapshot / "m-2.safetensors").tensors.size() == 1);
  fs::remove(blobs / "m-2.safetensors");
  CHECK(open_error(snapshot, Code::kCorrupt).find("m-2.safetensors") != std::string::npos);
}

TEST_CASE("safetensors: variants of a model in one folder are not damage: one is asked for, by its file or its index") {
  TempDir dir;
  auto header = [](const std::string& key, const std::string& dtype) {
    return R"({")" + key + R"(":{"dtype":")" + dtype + R"(","shape":[1],"data_offsets":[0,2]}})";
  };
  REQUIRE(io::write_file(dir.path / "model.safetensors", file_of(header("a", "I16"), "ab")));
  REQUIRE(io::write_file(dir.path / "model.extra.safetensors", file_of(header("b", "I16"), "ab")));
  CHECK(open_ok(dir.path).tensors.size() == 2);
  REQUIRE(io::write_file(dir.path / "model.fp16.safetensors", file_of(header("a", "F16"), "cd")));
  CHECK(open_error(dir.path, Code::kUnsupported).find("both model.fp16.safetensors and model.safetensors have a") !=
        std::string::npos);
  CHECK(open_ok(dir.path / "model.fp16.safetensors").tensors.size() == 1);
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.fp16.json",
                         R"({"weight_map": {"a": "model.fp16.safetensors"}})"));
  CHECK(open_ok(dir.path).tensors[0].dtype == tensor::DType::kFloat16);
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.json", R"({"weight_map": {"a": "model.safetensors"}})"));
  CHECK(open_error(dir.path, Code::kUnsupported).find("several safetensors indexes") != std::string::npos);
  CHECK(open_ok(dir.path / "model.safetensors.index.fp16.json").tensors[0].dtype == tensor::DType::kFloat16);
}

TEST_CASE("safetensors: torch's distributed pieces join to whole tensors") {
  TempDir dir;
  auto part = [](const std::string& offset) {
    return R"({"__metadata__":{"DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [)" + offset +
           R"(]}}"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  };
  REQUIRE(io::write_file(dir.path / "shard-00001-model-00001-of-00001.safetensors", file_of(part("0"), "ab")));
  REQUIRE(io::write_file(dir.path / "shard-00002-model-00001-of-00001.safetensors", file_of(part("2"), "cd")));
  auto catalog = open_ok(dir.path);
  REQUIRE(catalog.tensors.size() == 1);
  CHECK(tensor_sha256(catalog, catalog.tensors[0]) == sha256_hex(as_bytes("abcd")));
  fs::remove(dir.path / "shard-00001-model-00001-of-00001.safetensors");
  CHECK(open_error(dir.path, Code::kCorrupt).find("no shard covers [0:2]") != std::string::npos);
}

TEST_CASE("safetensors: files that other programs wrote equal their manifests") {
  for (const char* root : {"burn-store", "candle"}) {
    auto path = fixture(root);
    if (!path) continue;
    auto manifest = read_json(*path / "manifest.json");
    for (const auto& item : manifest["files"].items()) {
      if (item.key().find(".safetensors") == std::string::npos) continue;
      auto catalog = open_ok(*path / item.key());
      CHECK(!catalog.tensors.empty());
      if (!item.value().contains("tensors")) continue;
      for (const auto& expected : item.value()["tensors"].items()) {
        const tensor::Tensor* t = find(catalog, expected.key());
        REQUIRE(t != nullptr);
        CHECK(tensor_sha256(catalog, *t, 1 << 16) == expected.value()["sha256"]);
      }
    }
  }
}
