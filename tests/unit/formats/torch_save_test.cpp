#include <algorithm>

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
      CHECK(catalog->unsupported.size() == 1);
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

TEST_CASE("torch_save: files of torch 1.13, zip and legacy, equal their manifest, views and expanded tensors included") {
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

TEST_CASE("torch_save: the hostile files are refused or name what they would have run") {
  auto root = fixture("picklescan-hostile");
  if (!root) return;
  for (const auto& entry : fs::directory_iterator(*root)) {
    std::string name = entry.path().filename().string();
    auto catalog = formats::open_checkpoint(entry.path(), {});
    if (!catalog) {
      bool known = catalog.error().code == Code::kAnswerNo || catalog.error().code == Code::kUnsupported;
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
  CHECK(open_error(dir.path, Code::kAnswerNo).find("iter_0000100") != std::string::npos);
  fs::create_directories(dir.path / "iter_0000100");
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})"));
  REQUIRE(io::write_file(dir.path / "iter_0000100/common.pt", "PK"));
  auto catalog = open_ok(dir.path);
  CHECK(catalog.root == dir.path / "iter_0000100");
  CHECK(catalog.warnings.size() == 1);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 2})"));
  CHECK(open_error(dir.path, Code::kUnsupported).find("version 2") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"({"sharded_backend": "magic"})"));
  CHECK(open_error(dir.path, Code::kUnsupported).find("magic") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "iter_0000100/metadata.json", R"([1])"));
  CHECK(open_error(dir.path, Code::kAnswerNo).find("JSON object") != std::string::npos);
  fs::remove(dir.path / "iter_0000100/metadata.json");
  CHECK(open_error(dir.path, Code::kAnswerNo).find("did not finish") != std::string::npos);
}
