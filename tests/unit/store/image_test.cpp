#include <doctest/doctest.h>
#include <sys/stat.h>

#include <thread>

#include "lib/base/digest.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kImageBase = 0x7f0000000000;

/// Pages of up to 40 blocks in random states. `older`: what the parent resolves to, some of it written again as it is.
Pages random_pages(Rng& rng, const Memory* older) {
  Pages out;
  for (uint64_t block = 0; block < 40; ++block) {
    if (rng() % 4 == 0) continue;
    uint64_t style = rng() % 4;
    for (uint64_t i = 0; i < kBlockPages; ++i) {
      uint64_t address = kImageBase + block * kBlockSize + i * kPageSize;
      uint64_t roll = rng() % 8;
      if (older != nullptr && style == 0) {
        if (auto it = older->find(address); it != older->end()) out[address] = {Page::kData, it->second};
      } else if (roll < 2 && style != 1) {
        continue;
      } else if (roll < 3) {
        out[address] = {Page::kZero, {}};
      } else if (roll < 5 && older != nullptr) {
        out[address] = {Page::kParent, {}};
      } else if (roll < 6) {
        out[address] = {Page::kData, rng() % 3 == 0 ? zero_page() : text_page(rng() % 50)};
      } else {
        out[address] = {Page::kData, random_page(rng() % 100)};
      }
    }
  }
  return out;
}

/// What was loaded sparsely says the same of each block, then of some of them, and in the end of all.
void check_sparse(const fs::path& dir, const Memory& expected, Rng& rng) {
  auto opened = ImageReader::open_description(dir);
  REQUIRE(opened);
  ImageReader& reader = **opened;
  auto loaded = reader.load_sparsely();
  REQUIRE_MESSAGE(loaded, why(loaded));
  Memory seen;
  Bytes bytes(kBlockSize);
  for (uint64_t block = 0; block < 41; ++block) {
    const uint64_t address = kImageBase + block * kBlockSize;
    ImageReader::ResolvedBlock masks;
    auto size = reader.read_block_at(address, masks, bytes);
    REQUIRE_MESSAGE(size, why(size));
    CHECK(masks.address == address);
    add_to(seen, masks, ByteSpan(bytes).first(*size));
    if (masks.data_mask != 0) CHECK(reader.may_have_data(address + kBlockSize - kPageSize, address + kBlockSize));
  }
  CHECK(seen == expected);
  CHECK_FALSE(reader.may_have_data(kImageBase + 41 * kBlockSize, kImageBase + 99 * kBlockSize));
  CHECK_FALSE(reader.may_have_data(0, kImageBase));
  const uint64_t middle = kImageBase + rng() % 40 * kBlockSize + kPageSize, end = middle + rng() % 5 * kBlockSize;
  const AddressRange ranges[] = {{0, kImageBase + kPageSize}, {middle, end}};
  REQUIRE(reader.load_pages_of(ranges));
  auto some = read_memory(reader);
  REQUIRE_MESSAGE(some, why(some));
  for (const auto& [address, page] : *some) CHECK(expected.at(address) == page);
  for (const auto& [address, page] : expected) {
    if (address < kImageBase + kPageSize || (address >= middle && address < end)) CHECK(some->count(address) == 1);
  }
  CHECK(reader.blocks().size() <= 6 + 1);
  REQUIRE(reader.load_pages());
  CHECK(*read_memory(reader) == expected);
}

}  // namespace

TEST_CASE("image: a chain of three reads back as the memory that its pages describe") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    TempDir temp;
    Memory expected;
    fs::path parent;
    for (int generation = 0; generation < 3; ++generation) {
      fs::path dir = temp.path / std::to_string(generation);
      Pages pages = random_pages(rng, generation == 0 ? nullptr : &expected);
      ImageWriter::Options options;
      options.parent = parent;
      options.compress = seed % 3 != 0;
      auto writer = ImageWriter::create(dir, options);
      REQUIRE_MESSAGE(writer, why(writer));
      // A block may be handed over in two parts: two mappings may meet inside it.
      auto split = static_cast<uint16_t>(seed % 2 == 0 ? 0xffff : rng());
      REQUIRE(add_pages(**writer, pages, split));
      REQUIRE(add_pages(**writer, pages, static_cast<uint16_t>(~split)));
      Manifest manifest = small_manifest();
      auto committed = (*writer)->commit(manifest);
      REQUIRE_MESSAGE(committed, why(committed));
      expected = resolve(expected, pages);
      parent = dir;

      auto reader = ImageReader::open(dir);
      REQUIRE_MESSAGE(reader, why(reader));
      CHECK((*reader)->manifest() == manifest);
      CHECK((*reader)->chain().size() == static_cast<size_t>(generation) + 1);
      auto memory = read_memory(**reader);
      REQUIRE_MESSAGE(memory, why(memory));
      CHECK(*memory == expected);
      auto findings = (*reader)->verify(null_progress(), Cancel());
      REQUIRE(findings);
      CHECK(findings->empty());
      check_sparse(dir, expected, rng);
    }
  }
}

TEST_CASE(
    "image: a page that the child refers to a parent that lacks it is absent, and nothing shows through unasked") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", {{kImageBase, {Page::kData, random_page(1)}},
                                        {kImageBase + kPageSize, {Page::kData, random_page(2)}}}));
  REQUIRE(write_image(temp.path / "b",
                      {{kImageBase, {Page::kParent, {}}}, {kImageBase + 5 * kPageSize, {Page::kParent, {}}}},
                      temp.path / "a"));
  auto reader = ImageReader::open(temp.path / "b");
  REQUIRE(reader);
  CHECK(*read_memory(**reader) == Memory{{kImageBase, random_page(1)}});
}

TEST_CASE("image: equal chunks are stored once, zero pages not at all, and the totals say so") {
  TempDir temp;
  auto writer = ImageWriter::create(temp.path / "a", {});
  REQUIRE(writer);
  Pages pages;
  for (uint64_t i = 0; i < 100; ++i) pages[kImageBase + i * kBlockSize] = {Page::kData, random_page(7)};
  for (uint64_t i = 100; i < 110; ++i) pages[kImageBase + i * kBlockSize + kPageSize] = {Page::kData, random_page(7)};
  for (uint64_t i = 0; i < 50; ++i) pages[kImageBase + i * kBlockSize + 3 * kPageSize] = {Page::kData, zero_page()};
  for (uint64_t i = 50; i < 60; ++i) pages[kImageBase + i * kBlockSize + 3 * kPageSize] = {Page::kZero, {}};
  REQUIRE(add_pages(**writer, pages));
  ImageWriter::Totals totals = (*writer)->totals();
  CHECK(totals.pages_data == 110);
  CHECK(totals.pages_zero == 60);
  CHECK(totals.pages_parent == 0);
  CHECK(totals.saved.same_space == 109 * kPageSize);
  CHECK(totals.saved.zero == 60 * kPageSize);
  CHECK(totals.saved.other_space == 0);
  CHECK(totals.bytes_written == kPageSize);
  Manifest manifest = small_manifest();
  REQUIRE((*writer)->commit(manifest));
  CHECK(fs::file_size(temp.path / "a" / "pages") == kPageSize);
  uint64_t on_disk = 0;
  for (const StoredFile& file : manifest.files) {
    CHECK(fs::file_size(temp.path / "a" / file.name) == file.size);
    on_disk += file.size;
  }
  CHECK(manifest.stats.bytes_written == on_disk);
  CHECK(manifest.stats.phases_us.back().first == "durable");
  auto reader = ImageReader::open(temp.path / "a");
  REQUIRE(reader);
  CHECK(*read_memory(**reader) == resolve({}, pages));
}

TEST_CASE("image: a block that the parent has with the same content becomes a reference") {
  TempDir temp;
  Pages pages;
  for (uint64_t i = 0; i < 32; ++i) pages[kImageBase + i * kPageSize] = {Page::kData, random_page(i)};
  REQUIRE(write_image(temp.path / "a", pages));
  ImageWriter::Options options;
  options.parent = temp.path / "a";
  auto writer = ImageWriter::create(temp.path / "b", options);
  REQUIRE(writer);
  pages[kImageBase + 20 * kPageSize].data = random_page(1000);
  REQUIRE(add_pages(**writer, pages));
  CHECK((*writer)->totals().pages_parent == 16);
  CHECK((*writer)->totals().pages_data == 16);
  Manifest manifest = small_manifest();
  REQUIRE((*writer)->commit(manifest));
  CHECK(manifest.parent_path == "../a");
  auto reader = ImageReader::open(temp.path / "b");
  REQUIRE(reader);
  CHECK(*read_memory(**reader) == resolve({}, pages));
}

TEST_CASE("image: text is compressed, random bytes are kept as they are and lie page-aligned") {
  TempDir temp;
  Pages text, noise;
  for (uint64_t i = 0; i < 64; ++i) {
    text[kImageBase + i * kPageSize] = {Page::kData, text_page(100 * i)};
    noise[kImageBase + i * kPageSize] = {Page::kData, random_page(i)};
  }
  REQUIRE(write_image(temp.path / "text", text));
  REQUIRE(write_image(temp.path / "noise", noise));
  CHECK(fs::file_size(temp.path / "text" / "pages") < 64 * kPageSize / 4);
  CHECK(fs::file_size(temp.path / "noise" / "pages") == 64 * kPageSize);
}

TEST_CASE("image: blocks added by four threads at a time read back") {
  TempDir temp;
  constexpr uint64_t kThreads = 4, kBlocks = 300;
  std::vector<Pages> parts(kThreads);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    for (uint64_t page = 0; page < 3; ++page) {
      uint64_t seed = i % 5 == 0 ? page : 3 * i + page;  // every fifth block is the same
      parts[i % kThreads][kImageBase + i * kBlockSize + page * kPageSize] = {
          Page::kData, i % 2 == 0 ? random_page(seed) : text_page(seed)};
    }
  }
  auto writer = ImageWriter::create(temp.path / "a", {});
  REQUIRE(writer);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (const Pages& part : parts) {
    threads.emplace_back([&] { failures += add_pages(**writer, part) ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK((*writer)->totals().saved.same_space >= 58 * kPageSize);
  Manifest manifest = small_manifest();
  REQUIRE((*writer)->commit(manifest));
  Memory expected;
  for (const Pages& part : parts) expected.merge(resolve({}, part));
  auto reader = ImageReader::open(temp.path / "a");
  REQUIRE(reader);
  CHECK(*read_memory(**reader) == expected);
  CHECK((*reader)->verify(null_progress(), Cancel())->empty());
}

TEST_CASE("image: what was appended to xstate and pipes is there, and nothing beyond it") {
  TempDir temp;
  auto writer = ImageWriter::create(temp.path / "a", {});
  REQUIRE(writer);
  Bytes area = random_page(1), content = random_page(2);
  CHECK(*(*writer)->append_xstate(area) == 0);
  CHECK(*(*writer)->append_xstate(ByteSpan(content).first(100)) == kPageSize);
  CHECK(*(*writer)->append_pipe(content) == 0);
  Manifest manifest = small_manifest();
  REQUIRE((*writer)->commit(manifest));
  auto reader = ImageReader::open(temp.path / "a");
  REQUIRE(reader);
  CHECK(*(*reader)->read_xstate(0, kPageSize) == area);
  CHECK(*(*reader)->read_xstate(kPageSize, 100) == Bytes(content.begin(), content.begin() + 100));
  CHECK(*(*reader)->read_pipe(0, kPageSize) == content);
  CHECK((*reader)->read_xstate(kPageSize, 101).error().code == Code::kCorrupt);
  CHECK((*reader)->read_pipe(~uint64_t{0}, 2).error().code == Code::kCorrupt);
}

TEST_CASE("image: folders are 0700, files 0600, and sha256sum's form guards the manifest") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", {{kImageBase, {Page::kData, random_page(1)}}}));
  struct stat st{};
  REQUIRE(::stat((temp.path / "a").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
  for (const auto& entry : fs::directory_iterator(temp.path / "a")) {
    REQUIRE(::stat(entry.path().c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0600);
  }
  CHECK(slurp(temp.path / "a" / "manifest.sha256") ==
        sha256_hex(as_bytes(slurp(temp.path / "a" / "manifest.json"))) + "  manifest.json\n");
}

TEST_CASE("image: a writer that is dropped without a commit leaves nothing") {
  TempDir temp;
  {
    auto writer = ImageWriter::create(temp.path / "a", {});
    REQUIRE(writer);
    REQUIRE(add_pages(**writer, {{kImageBase, {Page::kData, random_page(1)}}}));
    REQUIRE(!fs::is_empty(temp.path));
  }
  CHECK(fs::is_empty(temp.path));
}

TEST_CASE("image: blocks that do not fit together are refused, and nothing is committed after that") {
  TempDir temp;
  Bytes page = random_page(1);
  auto refused = [&](const Block& block) {
    auto writer = ImageWriter::create(temp.path / "a", {});
    REQUIRE(writer);
    CHECK((*writer)->add_block(block).error().code == Code::kBug);
    Manifest manifest = small_manifest();
    CHECK_FALSE((*writer)->commit(manifest));
  };
  refused({kImageBase + kPageSize, 1, 0, 0, page});
  refused({kImageBase, 1, 1, 0, page});
  refused({kImageBase, 3, 0, 0, page});
  refused({kImageBase, 1, 0, 2, page});
  auto writer = ImageWriter::create(temp.path / "a", {});
  REQUIRE(writer);
  REQUIRE((*writer)->add_block({kImageBase, 1, 0, 0, page}));
  REQUIRE((*writer)->add_block({kImageBase, 0, 1, 0, {}}));
  Manifest manifest = small_manifest();
  CHECK((*writer)->commit(manifest).error().code == Code::kBug);
  writer->reset();
  CHECK(fs::is_empty(temp.path));
}

TEST_CASE("image: looks_like_image tells an image from other folders, a damaged manifest included") {
  TempDir temp;
  REQUIRE(write_image(temp.path / "a", {}));
  CHECK(ImageReader::looks_like_image(temp.path / "a"));
  std::string manifest = slurp(temp.path / "a" / "manifest.json");
  manifest[20] ^= 1;
  spit(temp.path / "a" / "manifest.json", manifest);
  CHECK(ImageReader::looks_like_image(temp.path / "a"));
  CHECK_FALSE(ImageReader::looks_like_image(temp.path));
  CHECK_FALSE(ImageReader::looks_like_image(temp.path / "missing"));
  fs::create_directory(temp.path / "other");
  spit(temp.path / "other" / "manifest.json", "{\"schema\": \"other/1\"}");
  CHECK_FALSE(ImageReader::looks_like_image(temp.path / "other"));
  CHECK(ImageReader::open(temp.path).error().code == Code::kNotFound);
  CHECK(ImageReader::open(temp.path / "missing").error().code == Code::kNotFound);
}
