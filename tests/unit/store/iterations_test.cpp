#include <doctest/doctest.h>

#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kRoundsBase = 0x10000;

Pages random_pages(Rng& rng, unsigned blocks, bool with_parent) {
  Pages out;
  for (uint64_t page = 0; page < blocks * kBlockPages; ++page) {
    const unsigned dice = static_cast<unsigned>(rng() % 8);
    Page what;
    if (dice < 3) what = {Page::kData, dice == 0 ? text_page(rng() % 50) : random_page(rng())};
    else if (dice == 3) what = {Page::kZero, {}};
    else if (dice < 7 && with_parent) what = {Page::kParent, {}};
    else continue;
    out[kRoundsBase + page * kPageSize] = what;
  }
  return out;
}

/// Whole pages of zeros are handed over as data now and then: the writer finds them.
Result<void> add_precopied(ImageWriter& writer, const Pages& pages, unsigned iteration) {
  return for_blocks(pages, 0xffff, [&](const Block& block) -> Result<void> {
    return (block.data_mask | block.zero_mask) == 0 ? Result<void>() : writer.add_precopied(block, iteration);
  });
}

void put(Memory& memory, const Pages& pages) {
  for (const auto& [address, page] : pages) memory[address] = page.kind == Page::kZero ? zero_page() : page.data;
}

}  // namespace

TEST_CASE("iterations: what was copied last counts, what it leaves out is gone") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    TempDir temp;
    const unsigned blocks = 1 + static_cast<unsigned>(rng() % 4), iterations = static_cast<unsigned>(rng() % 4);
    ImageWriter::Options options;
    Memory before;
    if (rng() % 2 == 0) {
      options.parent = temp.path / "parent";
      const Pages pages = random_pages(rng, blocks, false);
      REQUIRE(write_image(options.parent, pages));
      before = resolve({}, pages);
    }
    auto writer = ImageWriter::create(temp.path / "image", options);
    REQUIRE(writer);
    for (unsigned iteration = 0; iteration < iterations; ++iteration) {
      const Pages pages = random_pages(rng, blocks, false);
      REQUIRE(add_precopied(**writer, pages, iteration));
      put(before, pages);
    }
    const Pages last = random_pages(rng, blocks, iterations != 0 || !options.parent.empty());
    const auto half = static_cast<uint16_t>(rng());  // as two mappings that share a block are added
    REQUIRE(add_pages(**writer, last, half));
    REQUIRE(add_pages(**writer, last, static_cast<uint16_t>(~half)));
    Manifest manifest = small_manifest();
    auto committed = (*writer)->commit(manifest);
    REQUIRE_MESSAGE(committed, why(committed));
    auto reader = ImageReader::open(temp.path / "image");
    REQUIRE_MESSAGE(reader, why(reader));
    auto memory = read_memory(**reader);
    REQUIRE_MESSAGE(memory, why(memory));
    CHECK(*memory == resolve(before, last));
    auto findings = (*reader)->verify(null_progress(), Cancel());
    REQUIRE(findings);
    CHECK(findings->empty());
  }
}

TEST_CASE("iterations: an equal page of the parent does not show an older iteration instead") {
  TempDir temp;
  const Pages first = {{kRoundsBase, {Page::kData, random_page(1)}}},
              other = {{kRoundsBase, {Page::kData, random_page(2)}}};
  REQUIRE(write_image(temp.path / "parent", first));
  ImageWriter::Options options;
  options.parent = temp.path / "parent";
  auto writer = ImageWriter::create(temp.path / "image", options);
  REQUIRE(writer);
  REQUIRE(add_precopied(**writer, other, 0));
  REQUIRE(add_pages(**writer, first));
  Manifest manifest = small_manifest();
  REQUIRE((*writer)->commit(manifest));
  auto reader = ImageReader::open(temp.path / "image");
  REQUIRE_MESSAGE(reader, why(reader));
  CHECK(*read_memory(**reader) == Memory{{kRoundsBase, random_page(1)}});
}
