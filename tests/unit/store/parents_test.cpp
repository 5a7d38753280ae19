#include <doctest/doctest.h>

#include <functional>

#include "lib/store/chain.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kParentsBase = 0x10000;
Pages one_page(uint64_t seed) { return {{kParentsBase, {Page::kData, random_page(seed)}}}; }
const Pages kFromParent = {{kParentsBase, {Page::kParent, {}}}};

/// Rewrites an image's manifest, digest included, as somebody would who wants to mislead.
void forge(const fs::path& dir, const std::function<void(Manifest&)>& change) {
  auto manifest = read_manifest(dir);
  REQUIRE(manifest);
  change(*manifest);
  std::string json = to_json(*manifest);
  spit(dir / kManifestName, json);
  spit(dir / kManifestDigestName, manifest_digest_line(json));
}

/// The same of the page map.
void forge_pagemap(const fs::path& dir, const std::function<void(std::vector<PagemapRecord>&)>& change) {
  auto image = load_image(dir);
  REQUIRE(image);
  change(image->records);
  std::string file = pagemap_header(image->records.size());
  file += as_text(std::as_bytes(std::span(image->records)));
  spit(dir / kPagemapName, file);
  forge(dir, [&](Manifest& m) {
    for (StoredFile& f : m.files) {
      if (f.name == kPagemapName)
        f.size = file.size(), f.xxh128 = to_hex(xxh3_128(as_bytes(file))), f.sha256 = sha256_hex(as_bytes(file));
    }
  });
}

std::string only_finding(const fs::path& dir) {
  auto reader = ImageReader::open(dir);
  REQUIRE_MESSAGE(reader, why(reader));
  auto findings = (*reader)->verify(null_progress(), Cancel());
  REQUIRE(findings);
  REQUIRE(findings->size() == 1);
  return findings->front().file + ": " + findings->front().what;
}

}  // namespace

TEST_CASE("parents: images that move together still find each other") {
  TempDir temp;
  fs::create_directories(temp.path / "x" / "old");
  REQUIRE(write_image(temp.path / "x" / "old" / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "x" / "b", kFromParent, temp.path / "x" / "old" / "a"));
  CHECK(read_manifest(temp.path / "x" / "b")->parent_path == "../old/a");
  fs::rename(temp.path / "x", temp.path / "y");
  fs::create_directory_symlink(temp.path / "y" / "b", temp.path / "link");
  auto reader = ImageReader::open(temp.path / "link");
  REQUIRE_MESSAGE(reader, why(reader));
  CHECK(*read_memory(**reader) == Memory{{kParentsBase, random_page(1)}});
}

TEST_CASE("parents: a missing one and one that was replaced are refused by name") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  fs::rename(temp.path / "a", temp.path / "elsewhere");
  auto missing = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::kNotFound);
  CHECK(why(missing).find((temp.path / "b").string()) != std::string::npos);
  REQUIRE(write_image(temp.path / "a", one_page(2)));
  auto replaced = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(replaced);
  CHECK(replaced.error().code == Code::kCorrupt);
  CHECK(why(replaced).find("is not the parent") != std::string::npos);
}

TEST_CASE(
    "parents: one whose manifest has changed is refused though its id is the same, and an image of before that had a "
    "digest is read") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  forge(temp.path / "a", [](Manifest& m) { m.created += "!"; });
  auto changed = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(changed);
  CHECK(changed.error().code == Code::kCorrupt);
  CHECK(why(changed).find("SHA-256") != std::string::npos);
  forge(temp.path / "b", [](Manifest& m) {
    m.parent_sha256.clear();
    for (StoredFile& file : m.files) file.sha256.clear();
  });
  CHECK(ImageReader::open(temp.path / "b"));
}

TEST_CASE("parents: a circle is refused, whatever the ids say") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  std::string id_b = read_manifest(temp.path / "b")->id;
  forge(temp.path / "a", [&](Manifest& m) { m.parent_path = "../b", m.parent_id = id_b; });
  CHECK(why(ImageReader::open(temp.path / "b")).find("is not as it was") != std::string::npos);
  forge(temp.path / "b", [](Manifest& m) { m.parent_sha256.clear(); });  // as an older ckpt wrote it
  auto circle = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(circle);
  CHECK(circle.error().code == Code::kCorrupt);
  CHECK(why(circle).find("circle") != std::string::npos);
  forge(temp.path / "a", [&](Manifest& m) { m.parent_path = "../a", m.parent_id = m.id; });
  CHECK(why(ImageReader::open(temp.path / "a")).find("circle") != std::string::npos);
}

TEST_CASE("parents: a chain of thirty resolves, more than the limit is refused") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "0", one_page(1)));
  for (int i = 1; i < 30; ++i) {
    REQUIRE(write_image(temp.path / std::to_string(i), kFromParent, temp.path / std::to_string(i - 1)));
  }
  auto reader = ImageReader::open(temp.path / "29");
  REQUIRE(reader);
  CHECK((*reader)->chain().size() == 30);
  CHECK(*read_memory(**reader) == Memory{{kParentsBase, random_page(1)}});

  // The rest of the chain is copies that differ in their ids.
  auto id = [](size_t n) { return std::string(24, '0') + std::to_string(10'000'000 + n); };
  for (size_t i = 0; i <= kMaxChain; ++i) {
    fs::path dir = temp.path / ("c" + std::to_string(i));
    fs::copy(temp.path / "1", dir);
    forge(dir, [&](Manifest& m) {
      m.id = id(i);
      m.parent_path = "../c" + std::to_string(i + 1);
      m.parent_id = id(i + 1), m.parent_sha256.clear();
    });
  }
  auto deep = ImageReader::open(temp.path / "c0");
  REQUIRE_FALSE(deep);
  CHECK(deep.error().code == Code::kCorrupt);
  CHECK(why(deep).find("more than 999 parents") != std::string::npos);
}

TEST_CASE("parents: an image does not replace one that it refers to") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  ImageWriter::Options options;
  options.force = true;
  options.parent = temp.path / "b";
  CHECK(ImageWriter::create(temp.path / "a", options).error().code == Code::kUsage);
  CHECK(ImageWriter::create(temp.path / "b", options).error().code == Code::kUsage);
  auto reader = ImageReader::open(temp.path / "b");
  REQUIRE(reader);
  CHECK(*read_memory(**reader) == Memory{{kParentsBase, random_page(1)}});
}

TEST_CASE("parents: references in an image that has no parent are damage") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  forge(temp.path / "b", [](Manifest& m) { m.parent_path.clear(), m.parent_id.clear(); });
  auto reader = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(reader);
  CHECK(why(reader).find("refers to a parent") != std::string::npos);
}

TEST_CASE("parents: what is anywhere in the chain is not stored again, whatever its address and its process") {
  TempDir temp;
  const uint64_t other_process = space_base(1) + kParentsBase;
  Pages old, young;
  for (uint64_t i = 0; i < 16; ++i) old[kParentsBase + i * kPageSize] = {Page::kData, random_page(i)};
  for (uint64_t i = 0; i < 16; ++i) old[kParentsBase + kBlockSize + i * kPageSize] = {Page::kData, text_page(100 * i)};
  REQUIRE(write_image(temp.path / "a", old));
  REQUIRE(write_image(temp.path / "b", {{kParentsBase, {Page::kData, random_page(99)}}}, temp.path / "a"));
  for (uint64_t i = 0; i < 16; ++i) {
    young[kParentsBase + 7 * kBlockSize + i * kPageSize] = {Page::kData, random_page(i)};
    young[other_process + i * kPageSize] = {Page::kData, text_page(100 * i)};
  }
  young[kParentsBase] = {Page::kData, random_page(99)};
  young[kParentsBase + 8 * kBlockSize + kPageSize] = {Page::kData, random_page(99)};
  auto manifest = write_image(temp.path / "c", young, temp.path / "b");
  REQUIRE(manifest);
  CHECK(fs::file_size(temp.path / "c" / "pages") == 0);
  CHECK(manifest->stats.saved.parent_equal == kPageSize);
  CHECK(manifest->stats.saved.chain_elsewhere == 33 * kPageSize);
  auto reader = ImageReader::open(temp.path / "c");
  REQUIRE_MESSAGE(reader, why(reader));
  CHECK(*read_memory(**reader) == resolve({}, young));
  CHECK((*reader)->verify(null_progress(), Cancel())->empty());

  // Seen through one more image that says "as in the parent", and with the content given once more.
  Pages youngest;
  for (const auto& [address, page] : young) youngest[address] = {Page::kParent, {}};
  youngest[kParentsBase + 9 * kBlockSize] = {Page::kData, random_page(99)};
  REQUIRE(write_image(temp.path / "d", youngest, temp.path / "c"));
  auto last = ImageReader::open(temp.path / "d");
  REQUIRE_MESSAGE(last, why(last));
  CHECK(fs::file_size(temp.path / "d" / "pages") == 0);
  CHECK(*read_memory(**last) == resolve(resolve({}, young), youngest));
}

TEST_CASE("parents: a chunk that the chain does not have is refused, one that it has otherwise is found by verify") {
  TempDir temp;
  Pages pages;
  for (uint64_t i = 0; i < 16; ++i) pages[kParentsBase + i * kPageSize] = {Page::kData, random_page(i)};
  REQUIRE(write_image(temp.path / "a", pages));
  Pages moved;
  for (const auto& [address, page] : pages) moved[address + 5 * kBlockSize] = page;
  REQUIRE(write_image(temp.path / "b", moved, temp.path / "a"));
  auto refused = [&](const std::function<void(PagemapRecord&)>& lie, const std::string& because) {
    forge_pagemap(temp.path / "b", [&](std::vector<PagemapRecord>& records) {
      REQUIRE(records.size() == 1);
      REQUIRE(records[0].ancestor == 1);
      lie(records[0]);
    });
    auto reader = ImageReader::open(temp.path / "b");
    REQUIRE_FALSE(reader);
    CHECK(reader.error().code == Code::kCorrupt);
    CHECK_MESSAGE(why(reader).find(because) != std::string::npos, why(reader));
  };
  const auto sound = load_image(temp.path / "b")->records;
  auto restore = [&] { forge_pagemap(temp.path / "b", [&](std::vector<PagemapRecord>& records) { records = sound; }); };
  auto with_restore = [&](const std::function<void(PagemapRecord&)>& lie, const std::string& because) {
    refused(lie, because);
    // `load_image` looks at one image alone: the references are the chain's.
    restore();
    REQUIRE(ImageReader::open(temp.path / "b"));
  };
  with_restore([](PagemapRecord& r) { r.ancestor = 2; }, "the chain is not that long");
  with_restore([](PagemapRecord& r) { r.ancestor = 0xffff; }, "the chain is not that long");
  with_restore([](PagemapRecord& r) { r.file = 1; }, "no such pages file");
  with_restore([](PagemapRecord& r) { r.offset = kPageSize; }, "past the end");
  with_restore([](PagemapRecord& r) { r.offset = ~uint64_t{0} << 12; }, "past the end");

  forge_pagemap(temp.path / "b", [](std::vector<PagemapRecord>& records) { records[0].hash.lo ^= 1; });
  CHECK(only_finding(temp.path / "b").find("a/pages: damaged at offset 0") != std::string::npos);
  auto reader = ImageReader::open(temp.path / "b");
  REQUIRE(reader);
  CHECK(read_memory(**reader).error().code == Code::kCorrupt);
}

TEST_CASE(
    "parents: a page map that lies gives a sparse look a refusal or a block of that address, and all of it a refusal") {
  TempDir temp;
  Rng rng(5);
  Pages pages;
  for (uint64_t i = 0; i < 640; ++i) pages[kParentsBase + i * kPageSize] = {Page::kData, random_page(i)};
  REQUIRE(write_image(temp.path / "a", pages));
  Bytes bytes(kBlockSize);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const fs::path dir = temp.path / std::to_string(round);
    fs::copy(temp.path / "a", dir);
    forge_pagemap(dir, [&](std::vector<PagemapRecord>& records) {
      PagemapRecord& record = records[rng() % records.size()];
      if (round % 4 == 0) std::swap(record, records[rng() % records.size()]);
      if (round % 4 == 1) record.address = rng();
      if (round % 4 == 2) record.offset = rng();
      if (round % 4 == 3) reinterpret_cast<std::byte*>(&record)[8 + rng() % 8] ^= std::byte{0x55};
    });
    auto reader = ImageReader::open_description(dir);
    REQUIRE(reader);
    REQUIRE((*reader)->load_sparsely());
    for (uint64_t block = 0; block < 42; ++block) {
      ImageReader::ResolvedBlock masks;
      auto size = (*reader)->read_block_at(kParentsBase + block * kBlockSize, masks, bytes);
      if (size) CHECK(masks.address == kParentsBase + block * kBlockSize);
      else
        CHECK(size.error().code == Code::kCorrupt);
    }
    (void)(*reader)->may_have_data(rng(), rng());
    const AddressRange all{0, ~uint64_t{0}};
    const bool some = (*reader)->load_pages_of({&all, 1}).has_value(), whole = (*reader)->load_pages().has_value();
    CHECK((!whole || some));
    CHECK(whole == ImageReader::open(dir).has_value());
    fs::remove_all(dir);
  }
}
