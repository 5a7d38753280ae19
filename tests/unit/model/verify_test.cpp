// verify: what is wrong with a checkpoint is found, at its place; what is right is not complained of.
#include "lib/model/verify/verify.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "lib/model/verify/folder.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
using namespace ckpt::model;
using namespace std::string_literals;
namespace fs = std::filesystem;

namespace {

constexpr const char* kTorchDist = "mcore-0.13.1_dcp-2.7.1";
constexpr const char* kZarr = "mcore-0.13.1-zarr";

struct Copy {
  TempDir dir;
  fs::path path;
  /// Empty where the fixtures are not there.
  explicit Copy(const std::string& name, const std::string& group = "generated-megatron") {
    auto root = fixture(group);
    if (!root) return;
    path = dir.path / name;
    fs::copy(*root / name, path, fs::copy_options::recursive);
  }
};

tensor::Catalog open_tolerant(const fs::path& path) {
  ReadOptions options;
  options.tolerate_damage = true;
  return open_ok(path, options);
}

VerifyReport verified(const fs::path& path, const VerifyOptions& options = {}) {
  auto catalog = open_tolerant(path);
  auto report = verify(catalog, options, null_progress(), Cancel());
  REQUIRE_MESSAGE(report, (report ? "" : report.error().text()));
  return std::move(*report);
}

/// The findings as lines, without those on optimizer state: the fixtures have a few tensors only.
std::string lines(const VerifyReport& report) {
  std::string out;
  for (const tensor::Finding& f : report.findings) {
    if (f.message.find("optimizer state") == std::string::npos && f.message.find("parameter") == std::string::npos)
      out += (f.warning ? "warning: " : f.difference ? "differs: " : "damaged: ") + f.text() + "\n";
  }
  return out;
}

void patch(const fs::path& file, uint64_t offset, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream << bytes;
}
void append(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::app | std::ios::binary) << bytes;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Manifest manifest_of(const fs::path& path, bool tensors, HashKind kind = HashKind::kXxh3) {
  auto catalog = open_tolerant(path);
  auto manifest = make_manifest(catalog, default_manifest_path(path), {kind, tensors}, null_progress(), Cancel());
  REQUIRE_MESSAGE(manifest, (manifest ? "" : manifest.error().text()));
  manifest->name = "the manifest";
  return std::move(*manifest);
}

}  // namespace

TEST_CASE("verify: sound checkpoints have no findings, and their pickles only harmless names") {
  for (const char* name : {kTorchDist, kZarr, "mcore-0.19.0_dcp-2.9.1", "mcore-0.7.0_dcp-2.2.2"}) {
    Copy copy(name);
    if (copy.path.empty()) return;
    auto report = verified(copy.path);
    CHECK_MESSAGE(lines(report) == "", name);
    CHECK(!report.imports.empty());
    for (const auto& [global, import] : report.imports)
      CHECK_MESSAGE(import.classification.verdict == pickle::Verdict::kSafe, global);
  }
  for (const char* name : {"dcp-2.9.1", "dcp-2.9.1-zstd", "dcp-1.13"}) {
    Copy copy(name, "generated-dcp");
    CHECK_MESSAGE(lines(verified(copy.path)) == "", name);
  }
}

TEST_CASE("verify: a changed byte is a CRC that differs: damage, strict or not") {
  Copy copy(kTorchDist);
  if (copy.path.empty()) return;
  auto catalog = open_tolerant(copy.path);
  const tensor::Shard& shard = catalog.tensors[3].shards[0];
  patch(copy.path / catalog.files[shard.where.file].path, shard.where.offset, "\x55\xaa\x55");
  VerifyOptions options;
  for (bool strict : {false, true}) {
    options.strict = strict;
    const std::string text = lines(verified(copy.path, options));
    CHECK(has(text, "damaged: " + catalog.files[shard.where.file].path));
    CHECK(has(text, catalog.tensors[3].key + ": the CRC of record"));
  }
}

TEST_CASE("verify: bytes and files that nothing refers to, links, pipes and clashes of names are found") {
  Copy copy(kTorchDist);
  if (copy.path.empty()) return;
  const auto size = fs::file_size(copy.path / "__0_0.distcp");
  append(copy.path / "__0_0.distcp", "hidden");
  REQUIRE(io::write_file(copy.path / "__9_9.distcp", "left over"));
  REQUIRE(io::write_file(copy.path / "COMMON.pt", "x"));
  REQUIRE(io::write_file(copy.path / "a\x1b[31m", "x"));
  fs::create_symlink("common.pt", copy.path / "inner");
  fs::create_symlink("/etc/hostname", copy.path / "__8_8.distcp");
  fs::create_symlink("nowhere", copy.path / "lost");
  fs::create_symlink("/etc", copy.path / "folder");
  fs::create_symlink("/dev/null", copy.path / "device");
  REQUIRE(::mkfifo((copy.path / "pipe").c_str(), 0600) == 0);
  const std::string text = lines(verified(copy.path));
  CHECK(
      has(text, "warning: __0_0.distcp at byte " + std::to_string(size) + ": nothing refers to the 6 bytes from here"));
  CHECK(has(text, "warning: __9_9.distcp: no metadata refers to this file"));
  CHECK(has(text, "only in case"));
  CHECK(has(text, "its name holds control characters"));
  CHECK(!has(text, "inner"));
  CHECK(has(text, "warning: __8_8.distcp: no metadata refers to this file"));
  CHECK(has(text, "warning: lost: is a link to nowhere, where nothing is"));
  CHECK(has(text, "warning: folder: is a link to /etc, a folder, which is not followed"));
  CHECK(has(text, "damaged: device: is a link to /dev/null, which is no regular file"));
  CHECK(has(text, "damaged: pipe: is a pipe, a socket or a device"));
  VerifyOptions strict;
  strict.strict = true;
  CHECK(!has(lines(verified(copy.path, strict)), "warning"));
}

TEST_CASE("verify: a dangerous name in any pickle of a checkpoint is named with its place") {
  Copy copy(kTorchDist);
  if (copy.path.empty()) return;
  const std::string evil = "\x80\x02" "cposix\nsystem\nX\x02\x00\x00\x00id\x85R."s;
  auto text = io::read_file(copy.path / "common.pt", 1 << 20);
  REQUIRE(text);
  const size_t name = text->find("argparse\nNamespace");
  if (name != std::string::npos) {
    patch(copy.path / "common.pt", name, "os\nsystemsystem\nAB");
    CHECK(has(lines(verified(copy.path)),
              "common.pt at byte " + std::to_string(name - 1) + ": common state: loading it imports os.systemsystem"));
  }
  REQUIRE(io::write_file(copy.path / "__0.pkl", evil));
  auto scanned = scan_file(copy.path / "__0.pkl", false);
  REQUIRE(scanned);
  CHECK(lines(*scanned) == "damaged: __0.pkl at byte 2: loading it imports posix.system, which runs commands\n");
  CHECK_FALSE(scan_file(copy.path / "metadata.json", false));
}

TEST_CASE("verify: a manifest finds every kind of change, and says where") {
  Copy copy(kTorchDist);
  if (copy.path.empty()) return;
  for (HashKind kind : {HashKind::kXxh3, HashKind::kSha256}) {
    Manifest manifest = manifest_of(copy.path, false, kind);
    CHECK(manifest.files.size() == open_tolerant(copy.path).files.size() + 2);  // .metadata and metadata.json
    auto again = parse_manifest(to_json(manifest));
    REQUIRE_MESSAGE(again, (again ? "" : again.error().text()));
    CHECK(to_json(*again) == to_json(manifest));
    VerifyOptions options;
    options.manifest = &manifest;
    auto report = verified(copy.path, options);
    CHECK(lines(report) == "");
    CHECK(report.hashes == manifest.files.size());
    CHECK(report.records == 0);
  }
  Manifest manifest = manifest_of(copy.path, false);
  VerifyOptions options;
  options.manifest = &manifest;
  patch(copy.path / "__0_0.distcp", 1000, "?!");
  append(copy.path / "common.pt", "x");
  fs::remove(copy.path / "__2_1.distcp");
  const std::string text = lines(verified(copy.path, options));
  CHECK(has(text, "damaged: __0_0.distcp: its hash is not the one in the manifest"));
  CHECK(has(text, "bytes, in the manifest"));
  CHECK(has(text, "damaged: __2_1.distcp: is listed in the manifest and is missing"));
}

TEST_CASE("verify: blocks of a manifest are checked one by one") {
  Copy copy(kTorchDist);
  if (copy.path.empty()) return;
  Manifest manifest = manifest_of(copy.path, false);
  auto text = io::read_file(copy.path / "__0_0.distcp", 1 << 20);
  REQUIRE(text);
  manifest.block = 5000;
  for (auto& [name, file] : manifest.files) {
    auto bytes = io::read_file(copy.path / name, 1 << 20);
    file.hashes.clear();
    for (size_t at = 0; at < bytes->size(); at += 5000)
      file.hashes.push_back(to_hex(xxh3_128(as_bytes(*bytes).subspan(at, std::min<size_t>(5000, bytes->size() - at)))));
  }
  VerifyOptions options;
  options.manifest = &manifest;
  CHECK(lines(verified(copy.path, options)) == "");
  patch(copy.path / "__0_0.distcp", 12'345, "?!");
  CHECK(
      has(lines(verified(copy.path, options)),
          "damaged: __0_0.distcp at byte 10000: the hash of the 5000 bytes from here is not the one in the manifest"));
}

TEST_CASE("verify: hashes of tensors hold across formats") {
  Copy dist(kTorchDist), zarr(kZarr);
  if (dist.path.empty()) return;
  Manifest manifest = manifest_of(dist.path, true);
  CHECK(manifest.tensors.size() == open_tolerant(dist.path).tensors.size());
  VerifyOptions options;
  options.manifest = &manifest;
  options.tensor_hashes = true;
  auto report = verified(zarr.path, options);
  CHECK(lines(report) == "");
  CHECK(report.hashes == manifest.tensors.size());
  auto& [key, hash] = *manifest.tensors.begin();
  hash.hash[0] = hash.hash[0] == '0' ? '1' : '0';
  manifest.tensors["zzz"] = hash;
  const std::string text = lines(verified(zarr.path, options));
  CHECK(has(text, "damaged: " + key + ": its hash is not the one in the manifest"));
  CHECK(has(text, "damaged: zzz: is in the manifest, but not in the checkpoint"));
}

TEST_CASE("manifest: cut at every byte and changed at any byte it is refused or read, and never does harm") {
  Copy copy("mcore-0.7.0_dcp-2.2.2");
  if (copy.path.empty()) return;
  const std::string text = to_json(manifest_of(copy.path, true));
  for (size_t cut = 0; cut + 2 < text.size(); ++cut) CHECK_FALSE(parse_manifest(text.substr(0, cut)));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    (void)parse_manifest(changed);
  }
  auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return parse_manifest(changed);
  };
  CHECK(with("ckpt.manifest/1", "ckpt.manifest/2").error().code == Code::kUnsupported);
  CHECK(with("xxh3-128", "md5").error().code == Code::kUnsupported);
  CHECK(with("\".metadata\"", "\"../x\"").error().code == Code::kCorrupt);
  CHECK(with("\"block\": 67108864", "\"block\": 0").error().code == Code::kCorrupt);
  CHECK(with("\"block\": 67108864", "\"block\": 1").error().code == Code::kCorrupt);
}

TEST_CASE("verify: against another format every tensor is compared bit for bit") {
  Copy dist(kTorchDist), zarr(kZarr);
  if (dist.path.empty()) return;
  auto other = open_tolerant(zarr.path);
  VerifyOptions options;
  options.against = &other;
  auto report = verified(dist.path, options);
  CHECK(lines(report) == "");
  CHECK(report.compared == other.tensors.size());
  // The last element of a tensor's last chunk.
  const tensor::Tensor t = other.tensors[2];
  const tensor::Shard& shard = t.shards.back();
  patch(zarr.path / other.files[shard.where.file].path, shard.where.offset + shard.where.length - 1, "\x7e");
  fs::remove_all(zarr.path / other.tensors[4].key);
  other = open_tolerant(zarr.path);
  const std::string text = lines(verified(dist.path, options));
  CHECK_MESSAGE(has(text, "differs: " + t.key + ": 1 of "), text);
  CHECK(has(text, "the other checkpoint lacks it"));
}

TEST_CASE(
    "selection: parts are disjoint, together all, and of about equal size; samples are drawn the same everywhere") {
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < 1000; ++i) sizes.push_back(i % 7 == 0 ? 0 : i * 1000);
  for (uint64_t parts : {1, 2, 3, 7, 64, 5000}) {
    std::set<size_t> all;
    uint64_t total = 0, largest = 0;
    for (uint64_t part = 1; part <= parts; ++part) {
      uint64_t bytes = 0;
      for (size_t i : select_units(sizes, {part, parts, {}, {}, 0})) {
        CHECK(all.insert(i).second);
        bytes += sizes[i];
      }
      total += bytes;
      largest = std::max(largest, bytes);
    }
    CHECK(all.size() == sizes.size());
    CHECK(largest <= total / parts + 1'000'000);
  }
  auto tenth = select_units(sizes, {1, 1, 10.0, {}, 1});
  CHECK(tenth.size() > 60);
  CHECK(tenth.size() < 140);
  CHECK(tenth == select_units(sizes, {1, 1, 10.0, {}, 1}));
  CHECK(tenth != select_units(sizes, {1, 1, 10.0, {}, 2}));
  CHECK(select_units(sizes, {1, 1, {}, 17, 1}).size() == 17);
  CHECK(select_units(sizes, {1, 1, {}, 5000, 1}).size() == 1000);
  CHECK(select_units(sizes, {1, 1, 100.0, {}, 1}).size() == 1000);
  CHECK(select_units({}, {1, 3, {}, {}, 0}).empty());
}
