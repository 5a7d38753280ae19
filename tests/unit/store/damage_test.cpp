#include <doctest/doctest.h>
#include <sys/stat.h>

#include <functional>

#include "lib/store/pagemap.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kDamageBase = 0x400000;

/// An image that has everything: raw and compressed chunks with padding between them, a repeat, zero pages, a
/// parent, chunks of it at other addresses.
struct Sample {
  TempDir temp;
  fs::path dir = temp.path / "b";
  Sample() {
    Pages pages;
    for (uint64_t i = 0; i < 8; ++i) {
      pages[kDamageBase + i * kBlockSize] = {Page::kData, i % 2 == 0 ? text_page(1000 * i) : random_page(i)};
      pages[kDamageBase + i * kBlockSize + kPageSize] = {Page::kZero, {}};
    }
    pages[kDamageBase + 8 * kBlockSize] = {Page::kData, random_page(1)};
    REQUIRE(write_image(temp.path / "a", pages));
    pages[kDamageBase + 9 * kBlockSize] = {Page::kData, random_page(3)};
    pages[kDamageBase + 10 * kBlockSize] = {Page::kData, text_page(2000)};
    for (uint64_t i = 0; i < 4; ++i) pages[kDamageBase + i * kBlockSize] = {Page::kParent, {}};
    pages[kDamageBase + 5 * kBlockSize].data = text_page(77);
    pages[kDamageBase + 6 * kBlockSize].data = text_page(78);
    pages[kDamageBase + 7 * kBlockSize].data = random_page(79);

    ImageWriter::Options options;
    options.parent = temp.path / "a";
    auto writer = ImageWriter::create(dir, options);
    REQUIRE(writer);
    REQUIRE(add_pages(**writer, pages));
    REQUIRE((*writer)->append_xstate(random_page(5)));
    REQUIRE((*writer)->append_pipe(as_bytes("in the pipe")));
    Manifest manifest = small_manifest();
    REQUIRE((*writer)->commit(manifest));
    REQUIRE(clean());
  }

  /// Nothing found by open, verify or reading all blocks. Damage must be told as such, never as another kind of error.
  bool clean() const {
    auto reader = ImageReader::open(dir);
    if (!reader) {
      CHECK_MESSAGE(reader.error().code == Code::kCorrupt, why(reader));
      return false;
    }
    auto findings = (*reader)->verify(null_progress(), Cancel());
    REQUIRE_MESSAGE(findings, why(findings));
    auto memory = read_memory(**reader);
    // What cannot be read must be a finding; padding may be damaged without harm to a page.
    if (!memory) CHECK(!findings->empty());
    for (const auto& finding : *findings) CHECK(finding.file.rfind(temp.path.string(), 0) == 0);
    return findings->empty();
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::recursive_directory_iterator(temp.path)) {
      if (entry.is_regular_file()) out.push_back(entry.path());
    }
    return out;
  }
};

void flip(Sample& sample, const fs::path& file, const std::string& content, size_t at, int bit) {
  std::string bad = content;
  bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
  spit(file, bad);
  CHECK_MESSAGE(!sample.clean(), file.filename().string(), " byte ", at, " bit ", bit);
}

}  // namespace

TEST_CASE("damage: every file cut anywhere, grown or missing is refused by open") {
  Sample sample;
  for (const fs::path& file : sample.files()) {
    const std::string content = slurp(file);
    for (size_t cut : {size_t{0}, size_t{1}, content.size() / 3, content.size() / 2, content.size() - 1}) {
      if (cut >= content.size()) continue;
      spit(file, content.substr(0, cut));
      CHECK_MESSAGE(!ImageReader::open(sample.dir), file.string(), " cut to ", cut);
    }
    spit(file, content + '\0');
    CHECK_MESSAGE(!ImageReader::open(sample.dir), file.string(), " grown");
    fs::remove(file);
    CHECK_MESSAGE(!ImageReader::open(sample.dir), file.string(), " missing");
    spit(file, content);
    REQUIRE(ImageReader::open(sample.dir));
  }
}

TEST_CASE("damage: every bit of the small files' headers and random bits of all files are found") {
  Sample sample;
  Rng rng(1);
  for (const fs::path& file : sample.files()) {
    const std::string content = slurp(file);
    for (size_t at = 0; at < std::min<size_t>(content.size(), 100); ++at)
      flip(sample, file, content, at, static_cast<int>(at % 8));
    for (int i = 0; i < 60 && !content.empty(); ++i)
      flip(sample, file, content, rng() % content.size(), static_cast<int>(rng() % 8));
    spit(file, content);
    REQUIRE(sample.clean());
  }
}

TEST_CASE("damage: each bit of a compressed chunk counts, those that zstd ignores too") {
  Sample sample;
  const fs::path file = sample.dir / "pages";
  const std::string content = slurp(file);
  // The chunk of text starts the file: block 5 is the first that is not the parent's.
  REQUIRE(static_cast<unsigned char>(content[0]) == 0x28);
  for (size_t at = 0; at < 24; ++at) {
    for (int bit = 0; bit < 8; ++bit) flip(sample, file, content, at, bit);
  }
}

TEST_CASE("damage: a symbolic link, a folder and a fifo in place of a file are refused") {
  Sample sample;
  for (const char* name : {"manifest.json", "manifest.sha256", "pagemap", "pages", "xstate", "pipes"}) {
    const fs::path file = sample.dir / name;
    fs::rename(file, sample.temp.path / "kept");
    fs::create_symlink(sample.temp.path / "kept", file);
    CHECK_MESSAGE(!ImageReader::open(sample.dir), name, " as a link");
    fs::remove(file);
    fs::create_directory(file);
    CHECK_MESSAGE(!ImageReader::open(sample.dir), name, " as a folder");
    fs::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK_MESSAGE(!ImageReader::open(sample.dir), name, " as a fifo");
    fs::remove(file);
    fs::rename(sample.temp.path / "kept", file);
  }
  CHECK(sample.clean());
}

TEST_CASE("damage: verify can be interrupted") {
  Sample sample;
  auto reader = ImageReader::open(sample.dir);
  REQUIRE(reader);
  Cancel cancel;
  cancel.request();
  CHECK((*reader)->verify(null_progress(), cancel).error().code == Code::kInterrupted);
}

namespace {

PagemapRecord raw_record(uint64_t address, uint16_t mask, uint64_t offset) {
  PagemapRecord r;
  r.address = address;
  r.data_mask = mask;
  r.hash = {1, 2};
  r.offset = offset;
  r.set_stored_length(page_count(mask) * kPageSize);
  return r;
}

Result<std::vector<PagemapRecord>> parse(const std::vector<PagemapRecord>& records, uint64_t promised,
                                         size_t step = 7) {
  std::string file = pagemap_header(promised);
  file += as_text(std::as_bytes(std::span(records)));
  PagemapParser parser({uint64_t{1} << 20, uint64_t{1} << 16}, true);
  for (size_t at = 0; at < file.size(); at += step)
    CKPT_TRY(parser.feed(as_bytes(std::string_view(file).substr(at, step))));
  return parser.finish();
}

}  // namespace

TEST_CASE("page map: sound records come back however the bytes are cut") {
  std::vector<PagemapRecord> records = {raw_record(kDamageBase, 1, 0), raw_record(kDamageBase, 6, 4096),
                                        raw_record(kDamageBase + kBlockSize, 0xffff, 65536)};
  records[0].parent_mask = 6;
  for (size_t step : {size_t{1}, size_t{7}, size_t{48}, size_t{1000}}) {
    auto again = parse(records, 3, step);
    REQUIRE_MESSAGE(again, why(again));
    REQUIRE(again->size() == 3);
    CHECK((*again)[2].stored_length() == 65536);
  }
}

TEST_CASE("page map: records that lie are refused") {
  const PagemapRecord good = raw_record(kDamageBase, 3, 0);
  auto refused = [&](const std::function<void(PagemapRecord&)>& lie, const std::string& because) {
    PagemapRecord record = good;
    lie(record);
    auto parsed = parse({record}, 1);
    REQUIRE_FALSE(parsed);
    CHECK_MESSAGE(why(parsed).find(because) != std::string::npos, why(parsed));
  };
  refused([](PagemapRecord& r) { r.address += kPageSize; }, "not a multiple");
  refused([](PagemapRecord& r) { r = {}; }, "says nothing");
  refused([](PagemapRecord& r) { r.zero_mask = 1; }, "given twice");
  refused([](PagemapRecord& r) { r.parent_mask = 2; }, "given twice");
  refused([](PagemapRecord& r) { r.data_mask = 0, r.zero_mask = 1; }, "no page that has them");
  refused([](PagemapRecord& r) { r.length_less_one -= 1; }, "not that of its pages");
  refused([](PagemapRecord& r) { r.offset = 1; }, "not aligned");
  refused([](PagemapRecord& r) { r.stored_check = 1; }, "not zero");
  refused([](PagemapRecord& r) { r.codec = Codec::kZstd; }, "out of range");
  refused([](PagemapRecord& r) { r.codec = Codec::kZstd, r.set_stored_length(2 * kPageSize); }, "out of range");
  refused([](PagemapRecord& r) { r.codec = Codec{2}; }, "codec");
  refused([](PagemapRecord& r) { r.file = 2; }, "no such pages file");
  refused([](PagemapRecord& r) { r.offset = uint64_t{1} << 20; }, "past the end");
  refused([](PagemapRecord& r) { r.offset = ~uint64_t{0} << 12; }, "past the end");
  refused([](PagemapRecord& r) { r.file = 1, r.offset = 61440; }, "past the end");
  refused(
      [](PagemapRecord& r) {
        r.data_mask = 0, r.zero_mask = 1, r.hash = {}, r.offset = 0, r.length_less_one = 0, r.ancestor = 1;
      },
      "no page that has them");
  refused([](PagemapRecord& r) { r.ancestor = 1, r.offset = 1; }, "not aligned");
  CHECK(why(parse({good, good}, 2)).find("hidden") != std::string::npos);
  PagemapRecord over = raw_record(kDamageBase, 1, 0), under = raw_record(kDamageBase, 2, 0);
  over.parent_mask = 2, under.parent_mask = 4;
  CHECK(why(parse({over, under}, 2)).find("reaches below") != std::string::npos);
  under.parent_mask = 0;
  CHECK(parse({over, under}, 2));
  CHECK(why(parse({raw_record(kDamageBase + kBlockSize, 2, 0), good}, 2)).find("out of order") != std::string::npos);
  CHECK(why(parse({good}, 2)).find("truncated") != std::string::npos);
  CHECK(why(parse({good}, 0)).find("follows the last") != std::string::npos);
  CHECK(why(parse({}, ~uint64_t{0})).find("too many") != std::string::npos);
}
