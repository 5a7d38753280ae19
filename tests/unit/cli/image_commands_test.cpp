#include <doctest/doctest.h>
#include <fcntl.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/inspect_image.h"
#include "cli/verify_image.h"
#include "lib/base/unique_fd.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::cli;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

/// What a verb prints to stdout, and how it ends.
struct Ran {
  Result<void> result;
  std::string out;
};

Ran run(const std::function<Result<void>(Context&)>& verb, bool json) {
  TempDir temp;
  std::fflush(stdout);
  UniqueFd kept(::dup(1)), file(::open((temp.path / "out").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ::dup2(file.get(), 1);
  GlobalOptions options;
  options.json = json;
  Console console(options);
  Cancel cancel;
  Context context{console, null_progress(), cancel};
  Result<void> result = verb(context);
  std::fflush(stdout);
  ::dup2(kept.get(), 1);
  return {std::move(result), slurp(temp.path / "out")};
}

Ran run_inspect(const fs::path& dir, bool json, ImageViews views = {}) {
  return run([&](Context& c) { return inspect_image(c, dir, views); }, json);
}
Ran run_verify(const fs::path& dir, bool json) {
  return run([&](Context& c) { return verify_image(c, dir, {}); }, json);
}

constexpr uint64_t kBase = 0x10000;

/// A parent and a child whose mapping cuts through two blocks.
void make_images(const fs::path& dir) {
  Pages pages;
  for (uint64_t i = 0; i < 48; ++i)
    pages[kBase + i * kPageSize] = {i % 3 == 0 ? Page::kZero : Page::kData, random_page(i)};
  REQUIRE(write_image(dir / "a", pages));
  ImageWriter::Options options;
  options.parent = dir / "a";
  auto writer = ImageWriter::create(dir / "b", options);
  REQUIRE(writer);
  for (auto& page : pages) page.second.kind = Page::kParent;
  REQUIRE(add_pages(**writer, pages));
  Manifest m = small_manifest();
  m.tree.processes[0].arguments = {"evil\x1b[31m", "--x"};
  m.tree.processes[0].maps.resize(1);
  m.tree.processes[0].maps[0].start = kBase + 3 * kPageSize, m.tree.processes[0].maps[0].end = kBase + 30 * kPageSize;
  m.tree.processes[0].maps[0].prot = 3;
  m.tree.processes[0].maps[0].name = "[heap]";
  m.tree.descriptors.resize(1);
  m.tree.descriptors[0].kind = DescriptorKind::kExternal;
  m.tree.descriptors[0].external = "tty /dev/pts/3";
  m.tree.descriptors[0].fds = {{0, 0, false}, {0, 1, false}, {0, 2, false}};
  m.stats.frozen_us = 1234;
  REQUIRE((*writer)->commit(m));
}

}  // namespace

TEST_CASE("inspect: a process image is summed up, with nothing that could drive a terminal") {
  TempDir temp;
  make_images(temp.path);
  Ran ran = run_inspect(temp.path / "b", false);
  REQUIRE(ran.result);
  for (const char* text : {"4711: evil\\x1b[31m --x", "../a (2 images in the chain)", "1.23 ms",
                           "108 KiB in 1 mapping; 72.0 KiB in the image", "1 external"}) {
    CHECK_MESSAGE(ran.out.find(text) != std::string::npos, text, " in\n", ran.out);
  }
  CHECK(ran.out.find("[heap]") == std::string::npos);
  CHECK(ran.out.find('\x1b') == std::string::npos);
}

TEST_CASE(
    "inspect: a process image is shown in the tables that are asked for, with nothing that could drive a terminal") {
  TempDir temp;
  make_images(temp.path);
  Ran ran = run_inspect(temp.path / "b", false, {.maps = true, .descriptors = true, .threads = true});
  REQUIRE(ran.result);
  for (const char* text : {"4711: evil\\x1b[31m --x", "../a (2 images in the chain)", "1.23 ms", "[heap]", "rw-",
                           "tty /dev/pts/3", "0 1 2"}) {
    CHECK_MESSAGE(ran.out.find(text) != std::string::npos, text, " in\n", ran.out);
  }
  CHECK(ran.out.find('\x1b') == std::string::npos);
}

TEST_CASE("inspect: the JSON document counts the pages of a mapping, through the parent and inside its bounds") {
  TempDir temp;
  make_images(temp.path);
  Ran ran = run_inspect(temp.path / "b", true);
  REQUIRE(ran.result);
  auto doc = nlohmann::json::parse(ran.out);
  CHECK(doc["schema"] == "ckpt.inspect/1");
  CHECK(doc["chain"].size() == 2);
  CHECK(doc["pages_data"] == 32);
  CHECK(doc["pages_zero"] == 16);
  const auto& map = doc["process"]["maps"][0];
  CHECK(map["pages_data"] == 18);  // pages 3 to 29, every third of them zero
  CHECK(map["pages_zero"] == 9);
  CHECK(map["start"] == "0x13000");
  CHECK(doc["stats"]["frozen_us"] == 1234);
}

TEST_CASE(
    "inspect --stats: every phase, and every kind of saving adds up to the memory; neither pages nor parents are "
    "needed") {
  TempDir temp;
  make_images(temp.path);
  auto stats = [&](const char* name, bool json) {
    Ran ran = run([&](Context& c) { return inspect_image_stats(c, temp.path / name); }, json);
    REQUIRE(ran.result);
    return ran.out;
  };
  auto first = nlohmann::json::parse(stats("a", true));
  CHECK(first["schema"] == "ckpt.inspect/1");
  CHECK(first["memory_bytes"] == 48 * kPageSize);
  CHECK(first["stored_bytes"] == 32 * kPageSize);
  CHECK(first["stats"]["saved"]["zero"] == 16 * kPageSize);
  fs::remove_all(temp.path / "a");
  fs::remove(temp.path / "b" / "pages");
  auto second = nlohmann::json::parse(stats("b", true));
  CHECK(second["stats"]["saved"]["parent_unwritten"] == 48 * kPageSize);
  CHECK(second["stats"]["frozen_us"] == 1234);
  CHECK(second["stats"]["phases_us"].contains("durable"));
  const std::string text = stats("b", false);
  for (const char* part : {"1.23 ms", "durable", "not written since the parent", "100.0%"}) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, " in\n", text);
  }
}

TEST_CASE("load-metadata: an image's manifest is one JSON document, and the pages need not be there") {
  TempDir temp;
  make_images(temp.path);
  fs::remove(temp.path / "b" / "pages");
  fs::remove_all(temp.path / "a");
  Ran ran = run([&](Context& c) { return load_image_metadata(c, temp.path / "b"); }, false);
  REQUIRE(ran.result);
  auto doc = nlohmann::json::parse(ran.out);
  CHECK(doc["schema"] == "ckpt.load-metadata/1");
  CHECK(doc["manifest"]["tree"]["processes"][0]["pid"] == 4711);
}

TEST_CASE("verify: a sound chain has no findings, a flipped byte in the parent is named and ends in 1") {
  TempDir temp;
  make_images(temp.path);
  Ran ran = run_verify(temp.path / "b", false);
  REQUIRE(ran.result);
  CHECK(ran.out.empty());

  std::string pages = slurp(temp.path / "a" / "pages");
  pages[5000] = static_cast<char>(pages[5000] ^ 1);
  spit(temp.path / "a" / "pages", pages);
  ran = run_verify(temp.path / "b", true);
  REQUIRE_FALSE(ran.result);
  CHECK(ran.result.error().code == Code::kCorrupt);
  auto doc = nlohmann::json::parse(ran.out);
  CHECK(doc["ok"] == false);
  REQUIRE(doc["findings"].size() == 1);
  CHECK(doc["findings"][0]["file"] == (fs::canonical(temp.path) / "a" / "pages").string());

  fs::resize_file(temp.path / "b" / "pagemap", 40);
  ran = run_verify(temp.path / "b", false);
  REQUIRE_FALSE(ran.result);
  CHECK(ran.out.find("pagemap: truncated") != std::string::npos);
}
