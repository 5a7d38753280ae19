#include <algorithm>
#include <set>

#include "formats/common_state.h"
#include "formats/torch_save/archive.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
namespace fs = std::filesystem;

namespace {

/// Every file of a fixture folder against its manifest; returns how many were read.
size_t compare_all(const fs::path& root) {
  auto manifest = read_json(root / "manifest.json");
  size_t read = 0;
  for (const auto& item : manifest["files"].items()) {
    const std::string name = item.key();
    if (name.find(".pt") == std::string::npos) continue;
    auto catalog = formats::open_checkpoint(root / name, {});
    if (name.find("broken") != std::string::npos) {
      CHECK(!catalog);
      continue;
    }
    REQUIRE_MESSAGE(catalog, name << ": " << (catalog ? "" : catalog.error().text()));
    auto common = formats::common_state_json(*catalog);
    REQUIRE_MESSAGE(common, name << ": " << (common ? "" : common.error().text()));
    CHECK(!nlohmann::json::parse(*common, nullptr, false).is_discarded());
    ++read;
    if (!item.value().contains("tensors")) continue;
    if (name.find("sparse") != std::string::npos || name.find("quantized") != std::string::npos) {
      CHECK(catalog->unsupported.empty());  // their parts are handed out, and what they were is told
      CHECK(!catalog->tensors.empty());
      CHECK(!catalog->warnings.empty());
      continue;
    }
    for (const auto& expected : item.value()["tensors"].items()) {
      std::string key = expected.key().empty() ? "tensor" : expected.key();
      std::replace(key.begin(), key.end(), '/', '.');
      const tensor::Tensor* t = find(*catalog, key);
      REQUIRE_MESSAGE(t != nullptr, name << ": " << key);
      CHECK(t->shape == expected.value()["shape"].get<tensor::Shape>());
      CHECK_MESSAGE(tensor_sha256(*catalog, *t, 64) == expected.value()["sha256"], name << ": " << key);
    }
  }
  return read;
}

}  // namespace

TEST_CASE(
    "torch_save: files of torch 1.13, zip and legacy, equal their manifest, views and expanded tensors included") {
  if (auto root = fixture("generated-torch-save")) CHECK(compare_all(*root) == 43);
}

TEST_CASE("torch_save: files of newer torch releases equal their manifests") {
  if (auto root = fixture("burn-store")) CHECK(compare_all(*root) >= 50);
  if (auto root = fixture("candle")) CHECK(compare_all(*root) == 3);
}

TEST_CASE("torch_save: a file cut at any byte is refused, changed at any byte it does no harm") {
  auto root = fixture("generated-torch-save");
  if (!root) return;
  for (const char* name : {"zip_views.pt", "legacy_views.pt", "legacy_p4_shapes.pt"}) {
    auto good = io::read_file(*root / name, 1 << 20);
    REQUIRE(good);
    size_t opened = 0;
    for (size_t n = 0; n < good->size(); ++n) {
      if (formats::read_torch_file(zip::ByteSource(as_bytes(std::string_view(*good).substr(0, n)), "x"))) ++opened;
    }
    CHECK_MESSAGE(opened == 0, name);
    for (size_t i = 0; i < good->size(); ++i) {
      std::string bad = *good;
      bad[i] = static_cast<char>(bad[i] ^ 0xff);
      (void)formats::read_torch_file(zip::ByteSource(as_bytes(bad), "x"));
    }
  }
}

TEST_CASE("torch_save: a storage whose count is not what the pickle says is refused") {
  auto root = fixture("generated-torch-save");
  if (!root) return;
  auto good = io::read_file(*root / "legacy_views.pt", 1 << 20);
  REQUIRE(good);
  auto file = formats::read_torch_file(zip::ByteSource(as_bytes(*good), "x"));
  REQUIRE(file);
  const uint64_t first = file->storages.begin()->second.first;
  for (uint64_t at = first - 8; at < first; ++at) {
    std::string bad = *good;
    bad[at] = static_cast<char>(bad[at] + 1);
    CHECK_FALSE(formats::read_torch_file(zip::ByteSource(as_bytes(bad), "x")));
  }
}

TEST_CASE("torch_save: keys lead through dicts, lists and modules; what is not a tensor is a leaf") {
  auto root = fixture("generated-torch-save");
  if (!root) return;
  auto catalog = open_ok(*root / "zip_views.pt");
  for (const tensor::Tensor& t : catalog.tensors) CHECK(tensor::leads_to(t.path, t.key));
}

TEST_CASE("key paths: escaped, no two paths of an object have one text, and each leads to it") {
  using tensor::PathStep;
  auto name = [](const char* text) { return PathStep{PathStep::Kind::kName, text, 0}; };
  const PathStep one{PathStep::Kind::kNumber, "", 1};
  const std::vector<tensor::KeyPath> paths = {{name("a"), name("b")},   {name("a.b")},    {name("a\\.b")},
                                              {name("a\\"), name("b")}, {name("a"), one}, {name("a"), name("1")}};
  std::set<std::string> seen;
  for (const tensor::KeyPath& path : paths) {
    const std::string key = tensor::join_path(path, true);
    CHECK(seen.insert(key).second);
    CHECK(tensor::leads_to(path, key));
    CHECK(tensor::leads_to(path, tensor::join_path(path, false)));
  }
  CHECK(seen.count("a.b") == 1);
  CHECK(!tensor::leads_to(paths[0], "a\\.b"));
}

TEST_CASE("key paths: a path counts while its steps make the key") {
  using tensor::PathStep;
  const tensor::KeyPath path = {
      {PathStep::Kind::kName, "a.b", 0}, {PathStep::Kind::kIndex, "", 10}, {PathStep::Kind::kName, "w", 0}};
  CHECK(tensor::leads_to(path, "a.b.10.w"));
  for (const char* other : {"", "a.b.10", "a.b.10.", "a.b.10.w.", "a.b.1.w", "a.b.10.x", "a.b10.w", "xa.b.10.w"})
    CHECK_FALSE(tensor::leads_to(path, other));
  CHECK_FALSE(tensor::leads_to({}, ""));
}

TEST_CASE("stored layout: strides, signs and byte order are undone, nothing is read outside") {
  using formats::StoredLayout;
  using tensor::DType;
  auto make = [](const StoredLayout& layout, DType dtype, const tensor::Shape& shape, std::string_view stored) {
    std::vector<std::byte> out(*tensor::element_count(shape) * tensor::item_size(dtype));
    auto done = formats::lay_out(layout, dtype, shape, as_bytes(stored), out);
    return done ? std::string(as_text(out)) : "refused";
  };
  CHECK(make({{1, 2}, false, false, false}, DType::kUint8, {2, 3}, "abcdef") == "acebdf");
  CHECK(make({{0, 1}, false, false, false}, DType::kUint8, {2, 3}, "abc") == "abcabc");
  CHECK(make({{4}, false, false, false}, DType::kUint8, {2}, "abcde") == "ae");
  CHECK(make({{4}, false, false, false}, DType::kUint8, {2}, "abcd") == "refused");
  CHECK(make({{}, false, false, true}, DType::kInt32, {}, "abcd") == "dcba");
  CHECK(make({{1}, false, false, true}, DType::kComplex64, {1}, "abcdefgh") == "dcbahgfe");
  CHECK(make({{1}, true, false, false}, DType::kComplex32, {1}, std::string_view("\0\0\0\0", 4)) ==
        std::string("\0\0\0\x80", 4));
  CHECK(make({{1}, false, true, false}, DType::kComplex32, {1}, std::string_view("\0\0\0\0", 4)) ==
        std::string("\0\x80\0\x80", 4));
  CHECK(make({{1}, false, true, false}, DType::kInt16, {2}, std::string_view("\x01\0\xff\xff", 4)) ==
        std::string("\xff\xff\x01\0", 4));
}

TEST_CASE("torch_save: the hostile files are refused or name what they would have run") {
  auto root = fixture("picklescan-hostile");
  if (!root) return;
  for (const auto& entry : fs::directory_iterator(*root)) {
    std::string name = entry.path().filename().string();
    auto catalog = formats::open_checkpoint(entry.path(), {});
    if (!catalog) {
      bool known = catalog.error().code == Code::kCorrupt || catalog.error().code == Code::kUnsupported;
      CHECK_MESSAGE(known, name << ": " << catalog.error().text());
    }
    if (name == "bad_pytorch.pt" || name == "pytorch_magic_bypass.pt") CHECK(!catalog);
  }
}

TEST_CASE("formats: folders around a checkpoint are followed with a note, what is no checkpoint is named") {
  TempDir dir;
  CHECK(open_error(dir.path / "absent", Code::kNotFound) != "opened");
  CHECK(open_error(dir.path, Code::kUnsupported).find("no checkpoint") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "latest_checkpointed_iteration.txt", "100\n"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("iter_0000100") != std::string::npos);
  fs::create_directories(dir.path / "iter_0000100");
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json",
                         R"({"sharded_backend": "zarr", "sharded_backend_version": 1})"));
  REQUIRE(io::write_file(dir.path / "iter_0000100/common.pt", "PK"));
  auto catalog = open_ok(dir.path);
  CHECK(catalog.root == dir.path / "iter_0000100");
  CHECK(catalog.warnings.size() == 1);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json",
                         R"({"sharded_backend": "zarr", "sharded_backend_version": 2})"));
  CHECK(open_error(dir.path, Code::kUnsupported).find("version 2") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"({"sharded_backend": "magic"})"));
  CHECK(open_error(dir.path, Code::kUnsupported).find("magic") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"([1])"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("JSON object") != std::string::npos);
  fs::remove(dir.path / "iter_0000100/metadata.json");
  CHECK(open_error(dir.path, Code::kCorrupt).find("did not finish") != std::string::npos);
}
