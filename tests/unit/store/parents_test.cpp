#include <doctest/doctest.h>

#include <functional>

#include "lib/store/chain.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kBase = 0x10000;
Pages one_page(uint64_t seed) { return {{kBase, {Page::kData, random_page(seed)}}}; }
const Pages kFromParent = {{kBase, {Page::kParent, {}}}};

/// Rewrites an image's manifest, digest included, as somebody would who wants to mislead.
void forge(const fs::path& dir, const std::function<void(Manifest&)>& change) {
  auto manifest = read_manifest(dir);
  REQUIRE(manifest);
  change(*manifest);
  std::string json = to_json(*manifest);
  spit(dir / kManifestName, json);
  spit(dir / kManifestDigestName, manifest_digest_line(json));
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
  CHECK(*read_memory(**reader) == Memory{{kBase, random_page(1)}});
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
  CHECK(replaced.error().code == Code::kAnswerNo);
  CHECK(why(replaced).find("is not the parent") != std::string::npos);
}

TEST_CASE("parents: a circle is refused, whatever the ids say") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", one_page(1)));
  REQUIRE(write_image(temp.path / "b", kFromParent, temp.path / "a"));
  std::string id_b = read_manifest(temp.path / "b")->id;
  forge(temp.path / "a", [&](Manifest& m) { m.parent_path = "../b", m.parent_id = id_b; });
  auto circle = ImageReader::open(temp.path / "b");
  REQUIRE_FALSE(circle);
  CHECK(circle.error().code == Code::kAnswerNo);
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
  CHECK(*read_memory(**reader) == Memory{{kBase, random_page(1)}});

  // The rest of the chain is copies that differ in their ids.
  auto id = [](size_t n) { return std::string(24, '0') + std::to_string(10'000'000 + n); };
  for (size_t i = 0; i <= kMaxChain; ++i) {
    fs::path dir = temp.path / ("c" + std::to_string(i));
    fs::copy(temp.path / "1", dir);
    forge(dir, [&](Manifest& m) {
      m.id = id(i);
      m.parent_path = "../c" + std::to_string(i + 1);
      m.parent_id = id(i + 1);
    });
  }
  auto deep = ImageReader::open(temp.path / "c0");
  REQUIRE_FALSE(deep);
  CHECK(deep.error().code == Code::kAnswerNo);
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
  CHECK(*read_memory(**reader) == Memory{{kBase, random_page(1)}});
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
