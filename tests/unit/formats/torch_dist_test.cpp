#include "formats/torch_dist/metadata.h"
#include "formats/torch_dist/reformulated.h"
#include "tests/support/sanitized.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
namespace fs = std::filesystem;

namespace {

/// Every tensor of a fixture against its manifest: `logical` where the stored shape is a reformulated one.
void compare(const fs::path& path, const nlohmann::json& expected, const std::string& name) {
  auto catalog = open_ok(path);
  CHECK(catalog.tensors.size() == expected["tensors"].size());
  for (const auto& item : expected["tensors"].items()) {
    const tensor::Tensor* t = find(catalog, item.key());
    REQUIRE_MESSAGE(t != nullptr, name << " " << item.key());
    const auto& wanted = item.value().contains("logical") ? item.value()["logical"] : item.value();
    CHECK(tensor::dtype_name(t->dtype) == item.value()["dtype"]);
    CHECK_MESSAGE(t->shape == wanted["shape"].get<tensor::Shape>(), name << " " << item.key());
    for (uint64_t block : {uint64_t{60}, uint64_t{1} << 20}) {
      CHECK_MESSAGE(tensor_sha256(catalog, *t, block) == wanted["sha256"], name << " " << item.key());
    }
  }
  if (!expected.contains("objects")) return;
  for (const auto& item : expected["objects"].items()) {
    tensor::FileRange where;
    std::string inline_sha;
    if (item.key() == "common_state/shard_0_1") {
      REQUIRE(catalog.common);
      CHECK(catalog.common_wrapped_in_list);
      where = *catalog.common;
    } else {
      auto found = std::find_if(catalog.objects.begin(), catalog.objects.end(),
                                [&](const auto& o) { return o.key == item.key(); });
      REQUIRE_MESSAGE(found != catalog.objects.end(), item.key());
      where = found->where;
    }
    CHECK(catalog.files[where.file].path == item.value()["file"]);
    CHECK(where.offset == item.value()["offset"]);
    CHECK(where.length == item.value()["length"]);
  }
}

void copy_tree(const fs::path& from, const fs::path& to) { fs::copy(from, to, fs::copy_options::recursive); }

}  // namespace

TEST_CASE("torch_dist: the Megatron fixtures of every release equal their manifests, reformulated tensors undone") {
  auto root = fixture("generated-megatron");
  if (!root) return;
  auto manifest = read_json(*root / "manifest.json");
  size_t seen = 0;
  for (const auto& item : manifest["checkpoints"].items()) {
    if (item.key().find("_dcp-") == std::string::npos) continue;
    compare(*root / item.key(), item.value(), item.key());
    ++seen;
  }
  CHECK(seen == 7);
}

TEST_CASE("torch_dist: torch's own fixtures of every release equal their manifests") {
  auto root = fixture("generated-dcp");
  if (!root) return;
  auto manifest = read_json(*root / "manifest.json");
  size_t seen = 0;
  for (const auto& item : manifest["checkpoints"].items()) {
    compare(*root / item.key(), item.value(), item.key());
    ++seen;
  }
  CHECK(seen == 6);
}

TEST_CASE("torch_dist: the genuine torch 2.0 checkpoint equals its manifest") {
  auto root = fixture("lightning-dcp-torch2.0");
  if (!root) return;
  auto manifest = read_json(*root / "manifest.json");
  auto catalog = open_ok(*root / "checkpoint");
  const auto& tensors =
      manifest.contains("tensors") ? manifest["tensors"] : manifest["checkpoints"].begin().value()["tensors"];
  CHECK(catalog.tensors.size() == tensors.size());
  for (const auto& item : tensors.items()) {
    const tensor::Tensor* t = find(catalog, item.key());
    REQUIRE(t != nullptr);
    CHECK(tensor_sha256(catalog, *t) == item.value()["sha256"]);
  }
}

TEST_CASE("torch_dist: a lost mcore_data is repaired with a warning, a recorded one without") {
  auto root = fixture("generated-megatron");
  if (!root) return;
  CHECK(open_ok(*root / "mcore-0.13.1_dcp-2.9.1").warnings.size() == 1);
  CHECK(open_ok(*root / "mcore-0.13.1_dcp-2.7.1").warnings.empty());
}

TEST_CASE("torch_dist: content_metadata is told, from common.pt and from the object that replaced it") {
  auto root = fixture("generated-megatron");
  if (!root) return;
  size_t told = 0;
  for (const auto& entry : fs::directory_iterator(*root)) {
    if (entry.path().filename().string().find("_dcp-") == std::string::npos) continue;
    auto facts = nlohmann::json::parse(open_ok(entry.path()).metadata_json);
    CHECK(facts["metadata_json"]["sharded_backend"] == "torch_dist");
    told += facts.contains("content_metadata") ? 1 : 0;
  }
  CHECK(told >= 1);
}

TEST_CASE("torch_dist: metadata alone is read when no data file can be") {
  auto root = fixture("generated-dcp");
  if (!root) return;
  TempDir dir;
  fs::copy_file(*root / "dcp-2.9.1/.metadata", dir.path / ".metadata");
  ReadOptions options;
  options.locate_data = false;
  auto catalog = open_ok(dir.path, options);
  CHECK(catalog.tensors.size() > 5);
  CHECK(open_error(dir.path, Code::kCorrupt).find("__0_0.distcp: is missing") != std::string::npos);
}

TEST_CASE("torch_dist: a data file cut short is named with key and offset") {
  auto root = fixture("generated-dcp");
  if (!root) return;
  TempDir dir;
  copy_tree(*root / "dcp-2.6.0", dir.path / "c");
  fs::resize_file(dir.path / "c/__1_0.distcp", fs::file_size(dir.path / "c/__1_0.distcp") - 1);
  std::string text = open_error(dir.path / "c", Code::kCorrupt);
  CHECK(text.find("__1_0.distcp at byte") != std::string::npos);
  CHECK(text.find("the item ends at byte") != std::string::npos);
}

TEST_CASE("torch_dist: .metadata cut at any byte is refused, changed at any byte it never does harm") {
  auto root = fixture("generated-dcp");
  if (!root) return;
  for (const char* name : {"dcp-1.13", "dcp-2.9.1"}) {
    auto good = io::read_file(*root / name / ".metadata", 1 << 20);
    REQUIRE(good);
    for (size_t n = 0; n < good->size(); n += test::kSanitized ? 7 : 1)
      CHECK(!parse_dcp_metadata(as_bytes(std::string_view(*good).substr(0, n)), 1 << 30));
    for (size_t i = 0; i < good->size(); i += test::kSanitized ? 7 : 1) {
      for (int flip : {0x01, 0x80, 0xff, 0x20}) {
        std::string bad = *good;
        bad[i] = static_cast<char>(bad[i] ^ flip);
        (void)parse_dcp_metadata(as_bytes(bad), 1 << 30);
      }
    }
  }
}

TEST_CASE(
    "torch_dist: a data file changed at any byte of an item's zip is read right, refused, or differs in the tensor "
    "only") {
  auto root = fixture("lightning-dcp-torch2.0");
  if (!root) return;
  TempDir dir;
  copy_tree(*root / "checkpoint", dir.path / "c");
  auto good = io::read_file(dir.path / "c/__0_0.distcp", 1 << 20);
  REQUIRE(good);
  ReadOptions options;
  options.tolerate_damage = true;
  for (size_t i = 0; i < std::min<size_t>(good->size(), 2500); i += test::kSanitized ? 13 : 3) {
    std::string bad = *good;
    bad[i] = static_cast<char>(bad[i] ^ 0xff);
    REQUIRE(io::write_file(dir.path / "c/__0_0.distcp", bad));
    auto catalog = open_checkpoint(dir.path / "c", options);
    if (!catalog) continue;
    for (const tensor::Tensor& t : catalog->tensors) (void)tensor_sha256(*catalog, t, 1 << 20);
  }
}

TEST_CASE("torch_dist: paths that leave the folder are refused") {
  for (const char* good : {"__0_0.distcp", "a/b.distcp", "..x", "a..b/c"}) CHECK(is_safe_relative_path(good));
  for (const char* bad : {"", "/etc/passwd", "..", "../x", "a/../b", "a//b", "a/", "./a", "a\\b", "a\nb", "\x7f"}) {
    CHECK_FALSE(is_safe_relative_path(bad));
  }
}

TEST_CASE("torch_dist: planner_data says where keys lay in the nested state dict, where tensor bytes are wanted") {
  auto root = fixture("generated-dcp");
  if (!root) return;
  auto catalog = open_ok(*root / "dcp-2.9.1");
  const tensor::Tensor* t = find(catalog, "optim.state.0.exp_avg");
  REQUIRE(t != nullptr);
  CHECK(tensor::leads_to(t->path, t->key));
  CHECK(t->path.size() == 4);
  bool indexed = false;
  for (const tensor::Object& object : catalog.objects) {
    for (const tensor::PathStep& step : object.path) indexed = indexed || step.kind == tensor::PathStep::Kind::kIndex;
  }
  CHECK(indexed);
  ReadOptions options;
  options.locate_data = false;
  CHECK(find(open_ok(*root / "dcp-2.9.1", options), "optim.state.0.exp_avg")->path.empty());
}

namespace {

/// A rank's view: rows [from, to) of a tensor of 4 rows, and an object.
DcpMetadata rank_view(uint64_t from, uint64_t to, const std::string& file) {
  DcpMetadata out;
  out.paths = {file};
  DcpTensor t;
  t.tensor.key = "w";
  t.tensor.shape = {4};
  t.tensor.shards.emplace_back();
  t.tensor.shards[0].offset = {from};
  t.tensor.shards[0].shape = {to - from};
  t.tensor.shards[0].item = {0, from * 4, 16};
  out.tensors.push_back(t);
  tensor::Object object;
  object.key = "step";
  object.where = {0, 100, 10};
  out.objects.push_back(object);
  return out;
}

}  // namespace

TEST_CASE("torch_dist: what ranks saved each for itself is joined, copies count once") {
  RankMetadata all;
  REQUIRE(all.add(rank_view(0, 2, "__0_0.distcp")));
  REQUIRE(all.add(rank_view(2, 4, "__1_0.distcp")));
  REQUIRE(all.add(rank_view(2, 4, "__2_0.distcp")));
  DcpMetadata joined = all.take();
  REQUIRE(joined.tensors.size() == 1);
  CHECK(joined.paths == std::vector<std::string>{"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"});
  REQUIRE(joined.tensors[0].tensor.shards.size() == 2);
  CHECK(joined.tensors[0].tensor.shards[1].item.file == 1);
  CHECK(tensor::check_shards(joined.tensors[0].tensor).empty());
  CHECK(joined.objects.size() == 1);
  CHECK(joined.objects[0].where.file == 0);
  CHECK(joined.warnings.size() == 2);
}

TEST_CASE("torch_dist: ranks that contradict each other are refused") {
  RankMetadata all;
  REQUIRE(all.add(rank_view(0, 2, "a")));
  DcpMetadata other = rank_view(2, 4, "b");
  other.tensors[0].tensor.shape = {5};
  CHECK_FALSE(all.add(std::move(other)));
}

TEST_CASE("reformulated: ranges of a flattened shard become boxes that tile the original") {
  for (uint64_t cut = 0; cut <= 24; ++cut) {
    tensor::Tensor t;
    t.shape = {2, 1, 1, 24};
    for (uint64_t s : {uint64_t{0}, uint64_t{1}}) {
      for (auto [a, b] : {std::pair<uint64_t, uint64_t>{0, cut}, {cut, 24}}) {
        tensor::Shard shard;
        shard.offset = {s, 0, 0, a};
        shard.shape = {1, 1, 1, b - a};
        shard.where = {0, (s * 24 + a) * 4, (b - a) * 4};
        t.shards.push_back(shard);
      }
    }
    REQUIRE(undo_reformulation(t, {4, 3, 4}));
    CHECK(t.shape == tensor::Shape{4, 3, 4});
    CHECK(tensor::check_shards(t).empty());
    uint64_t bytes = 0;
    for (const tensor::Shard& shard : t.shards) {
      bytes += shard.where.length;
      // The first element of a box lies where its place in the shard says.
      uint64_t s = shard.offset[0] / 2;
      uint64_t at = ((shard.offset[0] % 2) * 3 + shard.offset[1]) * 4 + shard.offset[2];
      CHECK(shard.where.offset == (s * 24 + at) * 4);
    }
    CHECK(bytes == 4 * 48);
  }
}

TEST_CASE("reformulated: a shape that does not fit changes nothing") {
  tensor::Tensor t;
  t.shape = {2, 8};
  CHECK_FALSE(undo_reformulation(t, {15}));
  CHECK_FALSE(undo_reformulation(t, {4, 4}));
  CHECK_FALSE(undo_reformulation(t, {}));
  CHECK(undo_reformulation(t, {16}));
}
