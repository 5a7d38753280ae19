#include <doctest/doctest.h>

#include <algorithm>

#include "lib/store/image_files.h"
#include "lib/store/squash.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kSquashBase = 0x400000;

/// Three images whose last has pages of all kinds from all of them, and contents of its own.
struct SavedChain {
  TempDir temp;
  Memory memory;
  Manifest manifest;
  SavedChain() {
    Rng rng(3);
    fs::path parent;
    for (const char* name : {"a", "b", "c"}) {
      Pages pages;
      for (uint64_t i = 0; i < 64 * kBlockPages; ++i) {
        if (rng() % 8 == 0) continue;
        const uint64_t seed = rng() % 3000;
        Page page = rng() % 8 == 0 ? Page{Page::kZero, {}}
                                   : Page{Page::kData, i / kBlockPages % 2 == 0 ? random_page(seed) : text_page(seed)};
        // Whole blocks as in the parent, and single pages.
        if (!parent.empty() && (i / kBlockPages % 4 == 0 || rng() % 4 == 0)) page = {Page::kParent, {}};
        pages[kSquashBase + i * kPageSize] = page;
      }
      ImageWriter::Options options;
      options.parent = parent;
      auto writer = ImageWriter::create(temp.path / name, options);
      REQUIRE(writer);
      REQUIRE(add_pages(**writer, pages));
      REQUIRE((*writer)->append_xstate(random_page(5)));
      REQUIRE((*writer)->append_pipe(as_bytes("in the pipe")));
      manifest = small_manifest();
      manifest.stats.frozen_us = 77;
      REQUIRE((*writer)->commit(manifest));
      memory = resolve(memory, pages);
      parent = temp.path / name;
    }
  }
  Result<SquashReport> squash(const char* to, const SquashOptions& options = {}, const Cancel& cancel = {}) {
    return store::squash(temp.path / "c", temp.path / to, options, null_progress(), cancel);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(temp.path)) out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

}  // namespace

TEST_CASE("squash: the one image is read without the chain and says the same") {
  SavedChain chain;
  for (bool compress : {true, false}) {
    const char* name = compress ? "one" : "raw";
    SquashOptions options;
    options.compress = compress;
    auto report = chain.squash(name, options);
    REQUIRE_MESSAGE(report, why(report));
    CHECK(report->images == 3);
  }
  for (const char* name : {"a", "b", "c"}) fs::remove_all(chain.temp.path / name);
  CHECK(fs::file_size(chain.temp.path / "one" / "pagemap") == fs::file_size(chain.temp.path / "raw" / "pagemap"));
  for (const char* name : {"one", "raw"}) {
    auto reader = ImageReader::open(chain.temp.path / name);
    REQUIRE_MESSAGE(reader, why(reader));
    CHECK((*reader)->verify(null_progress(), Cancel())->empty());
    CHECK(*read_memory(**reader) == chain.memory);
    const Manifest& m = (*reader)->manifest();
    CHECK(m.id != chain.manifest.id);
    CHECK(m.parent_id.empty());
    CHECK(m.parent_path.empty());
    CHECK(m.kind == "dump");
    CHECK(m.tree == chain.manifest.tree);
    CHECK(m.stats.frozen_us == 77);
    CHECK(m.stats.phases_us.size() == 1);
    CHECK(*(*reader)->read_xstate(0, kPageSize) == random_page(5));
    CHECK(as_text(*(*reader)->read_pipe(0, 11)) == "in the pipe");
  }
}

TEST_CASE("squash: damage anywhere in the chain is an error that names the file, and nothing is written") {
  SavedChain chain;
  const fs::path file = chain.temp.path / "a" / "pages";
  std::string content = slurp(file);
  for (char& byte : content) byte = static_cast<char>(byte ^ 1);
  spit(file, content);
  auto report = chain.squash("one");
  REQUIRE_FALSE(report);
  CHECK(report.error().code == Code::kCorrupt);
  CHECK(why(report).find("a/pages") != std::string::npos);
  CHECK(chain.names() == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("squash: an interrupt leaves nothing, an image of the chain is never replaced, another folder only if told") {
  SavedChain chain;
  Cancel cancel;
  cancel.request();
  CHECK(chain.squash("one", {}, cancel).error().code == Code::kInterrupted);
  SquashOptions force;
  force.force = true;
  for (const char* name : {"a", "b", "c"}) CHECK(chain.squash(name, force).error().code == Code::kUsage);
  fs::create_directory(chain.temp.path / "full");
  spit(chain.temp.path / "full" / "precious", "content");
  CHECK(chain.squash("full").error().code == Code::kUsage);
  CHECK(chain.names() == std::vector<std::string>{"a", "b", "c", "full"});
  CHECK(fs::exists(chain.temp.path / "full" / "precious"));
  REQUIRE(chain.squash("full", force));
  REQUIRE(ImageReader::open(chain.temp.path / "full"));
}
