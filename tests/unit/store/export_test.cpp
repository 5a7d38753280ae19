// Archives of images: the same bytes each time, back again, and what strangers may put into one.
#include "lib/store/export.h"

#include <sys/stat.h>

#include "lib/base/io.h"
#include "lib/store/image_files.h"
#include "lib/store/tar.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

Pages some_pages(uint64_t seed) {
  Pages out;
  for (uint64_t i = 0; i < 40; ++i) out[0x10000 + i * kPageSize] = {Page::kData, random_page(seed + i)};
  for (uint64_t i = 0; i < 40; ++i) out[0x90000 + i * kPageSize] = {Page::kData, text_page(seed + i)};
  return out;
}

Result<std::string> exported(const fs::path& dir, Trust trust = Trust::kAnybody) {
  std::string out;
  auto sink = [&](ByteSpan bytes) -> Result<void> {
    out += as_text(bytes);
    return {};
  };
  CKPT_TRY(export_tar(dir, trust, sink, null_progress(), Cancel()));
  return out;
}

/// In pieces of any size, as a pipe gives them.
Result<ImportReport> imported(const std::string& archive, const fs::path& dir, bool force = false) {
  size_t at = 0, step = 1;
  auto source = [&](MutableByteSpan out) -> Result<size_t> {
    const size_t n = std::min({out.size(), archive.size() - at, step});
    step = step % 70'000 * 3 + 1;
    std::memcpy(out.data(), archive.data() + at, n);
    at += n;
    return n;
  };
  return import_tar(source, "archive", {dir, force}, null_progress(), Cancel());
}

std::map<std::string, std::string> files_in(const fs::path& dir) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file())
      out[entry.path().lexically_relative(dir).string()] = *io::read_file(entry.path(), 1 << 30);
  }
  return out;
}

/// Files one after the other, of which a test makes what it wants.
struct Archive {
  std::vector<std::pair<std::string, std::string>> files;
  std::string bytes() const {
    std::string out;
    TarWriter tar([&](ByteSpan bytes) -> Result<void> {
      out += as_text(bytes);
      return {};
    });
    for (const auto& [name, content] : files) {
      REQUIRE(tar.begin(name, content.size()));
      REQUIRE(tar.write(as_bytes(content)));
      REQUIRE(tar.end());
    }
    REQUIRE(tar.finish());
    return out;
  }
  std::string& content(const std::string& name) {
    for (auto& [other, content] : files) {
      if (other == name) return content;
    }
    FAIL("no such file");
    return files[0].second;
  }
};

Archive of_image(const fs::path& dir) {
  Archive out;
  for (const char* name : {kManifestName, kManifestDigestName})
    out.files.emplace_back(name, *io::read_file(dir / name, 1 << 30));
  auto manifest = read_manifest(dir);
  for (const std::string& name : file_names(manifest->files.size() - 3))
    out.files.emplace_back(name, *io::read_file(dir / name, 1 << 30));
  return out;
}

/// Another type of entry, with its checksum made anew.
std::string with_type(std::string archive, size_t header, char type) {
  archive[header + 156] = type;
  unsigned sum = 0;
  for (size_t i = 0; i < kTarBlock; ++i)
    sum += i >= 148 && i < 156 ? unsigned{' '} : static_cast<unsigned char>(archive[header + i]);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  std::memcpy(archive.data() + header + 148, text, 7);
  return archive;
}

void check_refused(const TempDir& scratch, const std::string& archive, const std::string& says) {
  CAPTURE(says);
  auto done = imported(archive, scratch.path / "refused");
  REQUIRE(!done);
  CHECK((done.error().code == Code::kCorrupt || done.error().code == Code::kUnsupported));
  CHECK(done.error().text().find(says) != std::string::npos);
  CHECK(!fs::exists(scratch.path / "refused"));
  for (const auto& entry : fs::directory_iterator(scratch.path))
    CHECK(!entry.path().filename().string().starts_with(".ckpt-staging"));
}

}  // namespace

TEST_CASE("export: the same image gives the same archive, wherever it lies, and comes back byte for byte") {
  TempDir scratch;
  REQUIRE(write_image(scratch.path / "image", some_pages(1)));
  fs::create_directories(scratch.path / "else" / "where");
  fs::copy(scratch.path / "image", scratch.path / "else" / "where" / "other", fs::copy_options::recursive);
  const auto archive = exported(scratch.path / "image");
  REQUIRE(archive);
  CHECK(archive->size() % kTarBlock == 0);
  CHECK(*archive == of_image(scratch.path / "image").bytes());
  CHECK(*exported(scratch.path / "else" / "where" / "other") == *archive);
  auto back = imported(*archive, scratch.path / "back");
  if (!back) FAIL(back.error().text());
  CHECK(back->images == 1);
  CHECK(files_in(back->path) == files_in(scratch.path / "image"));
  struct stat st {};
  REQUIRE(::stat((back->path / "pages").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  CHECK(!imported(*archive, scratch.path / "back"));
  REQUIRE(imported(*archive, scratch.path / "back", true));
  CHECK(files_in(scratch.path / "back") == files_in(scratch.path / "image"));
}

TEST_CASE("export: a chain takes its parents with it, and lies to each other as before") {
  TempDir scratch;
  const fs::path before = scratch.path / "run" / "first" / "before", now = scratch.path / "run" / "now";
  fs::create_directories(before.parent_path());
  REQUIRE(write_image(before, some_pages(1)));
  Pages changed;
  changed[0x10000] = {Page::kData, random_page(99)};
  for (uint64_t i = 1; i < 40; ++i) changed[0x10000 + i * kPageSize] = {Page::kParent, {}};
  REQUIRE(write_image(now, changed, before));
  const auto archive = exported(now);
  REQUIRE(archive);
  auto back = imported(*archive, scratch.path / "back");
  if (!back) FAIL(back.error().text());
  CHECK(back->images == 2);
  CHECK(back->path == scratch.path / "back" / "now");
  auto wanted = files_in(scratch.path / "run");
  CHECK(files_in(scratch.path / "back") == wanted);
  CHECK(ImageReader::open(back->path));
  fs::remove_all(before);
  CHECK(!exported(now));
}

TEST_CASE("export: damage and another user's images are refused before the archive has an end") {
  TempDir scratch;
  const fs::path dir = scratch.path / "image";
  REQUIRE(write_image(dir, some_pages(1)));
  REQUIRE(::chmod((dir / "pagemap").c_str(), 0666) == 0);
  auto refused = exported(dir, Trust::kOwn);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kPermission);
  REQUIRE(exported(dir));
  std::string map = *io::read_file(dir / "pagemap", 1 << 30);
  map[map.size() / 2] = static_cast<char>(map[map.size() / 2] ^ 1);
  REQUIRE(io::write_file(dir / "pagemap", map));
  auto damaged = exported(dir);
  REQUIRE(!damaged);
  CHECK(damaged.error().code == Code::kCorrupt);
}

TEST_CASE("import: an archive cut at any block, or with any bit flipped, is refused and leaves nothing") {
  TempDir scratch;
  REQUIRE(write_image(scratch.path / "image", [] {
    Pages few;
    few[0x10000] = {Page::kData, random_page(5)};
    return few;
  }()));
  const std::string good = *exported(scratch.path / "image");
  for (size_t size = 0; size < good.size(); size += kTarBlock)
    check_refused(scratch, good.substr(0, size), "");
  for (size_t at = 0; at < good.size() - 2 * kTarBlock; at += 61) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    auto done = imported(bad, scratch.path / "bad", true);
    // Padding, and fields of a header that nobody reads, which have a checksum all the same.
    if (done) CHECK(files_in(scratch.path / "bad") == files_in(scratch.path / "image"));
  }
  check_refused(scratch, good + std::string(kTarBlock, 'x'), "behind its end");
  REQUIRE(imported(good + std::string(20 * kTarBlock, '\0'), scratch.path / "padded"));
}

TEST_CASE("import: links, devices, paths that lead elsewhere and files that no image has are refused by name") {
  TempDir scratch;
  REQUIRE(write_image(scratch.path / "image", some_pages(3)));
  const Archive good = of_image(scratch.path / "image");
  const std::string bytes = good.bytes();
  for (const auto& [type, says] : std::map<char, std::string>{{'1', "hard link"}, {'2', "symbolic link"},
                                                              {'3', "device"}, {'6', "pipe"}, {'L', "kind"}})
    check_refused(scratch, with_type(bytes, 0, type), says);
  for (const char* path : {"../manifest.json", "/manifest.json", "a/../manifest.json", "a//manifest.json",
                           "a/./b/manifest.json", "a\n/manifest.json"}) {
    Archive bad = good;
    bad.files[0].first = path;
    check_refused(scratch, bad.bytes(), "leads elsewhere");
  }
  for (const char* name : {"children", "thesis.tex", "pages.64", "pages.01", "manifest.json.x", ""}) {
    Archive bad = good;
    bad.files.emplace_back(name, "x");
    check_refused(scratch, bad.bytes(), "");
  }
  Archive twice = good, before = good, early = good, lacks = good, larger = good, unnamed = good, nested = good;
  twice.files.push_back(twice.files.back());
  check_refused(scratch, twice.bytes(), "twice");
  std::swap(before.files[0], before.files[2]);
  check_refused(scratch, before.bytes(), "before the manifest");
  std::swap(early.files[0], early.files[1]);
  check_refused(scratch, early.bytes(), "before its manifest");
  lacks.files.pop_back();
  check_refused(scratch, lacks.bytes(), "lacks files");
  larger.content("xstate") += "x";
  check_refused(scratch, larger.bytes(), "bytes of a file where");
  unnamed.files.emplace_back("pages.63", "x");
  check_refused(scratch, unnamed.bytes(), "does not name");
  nested.files.emplace_back("inner/manifest.json", "x");
  check_refused(scratch, nested.bytes(), "in the folder of another");
  check_refused(scratch, Archive{}.bytes(), "no image");
  Archive other = good;
  other.content("manifest.json")[10] ^= 1;
  check_refused(scratch, other.bytes(), "digest");
  check_refused(scratch, "\x1f\x8b" + bytes, "compressed");
  check_refused(scratch, "not an archive" + bytes, "no archive");
}

TEST_CASE("import: images that are no chain are refused") {
  TempDir scratch;
  const fs::path run = scratch.path / "run";
  fs::create_directories(run);
  REQUIRE(write_image(run / "before", some_pages(1)));
  Pages changed;
  changed[0x10000] = {Page::kData, random_page(99)};
  REQUIRE(write_image(run / "now", changed, run / "before"));
  auto in = [&](const std::string& folder, const fs::path& image) {
    Archive out = of_image(image);
    for (auto& [name, content] : out.files) name.insert(0, folder + "/");
    return out;
  };
  auto both = [&](Archive a, const Archive& b) {
    a.files.insert(a.files.end(), b.files.begin(), b.files.end());
    return a.bytes();
  };
  REQUIRE(imported(both(in("before", run / "before"), in("now", run / "now")), scratch.path / "good"));
  check_refused(scratch, in("now", run / "now").bytes(), "parent is not in it");
  check_refused(scratch, of_image(run / "now").bytes(), "parent is not in it");
  check_refused(scratch, both(in("other", run / "before"), in("now", run / "now")), "parent is not in it");
  check_refused(scratch, both(in("a", run / "before"), in("b", run / "before")), "no chain");
}

TEST_CASE("tar: long names and large sizes are pax records, and come back") {
  std::string bytes;
  TarWriter out([&](ByteSpan some) -> Result<void> {
    bytes += as_text(some);
    return {};
  });
  const std::string name = std::string(150, 'n') + "/" + std::string(80, 'm');
  REQUIRE(out.begin(name, 3));
  REQUIRE(out.write(as_bytes("abc")));
  REQUIRE(out.end());
  REQUIRE(out.begin("large", uint64_t{1} << 40));
  size_t at = 0;
  TarReader in(
      [&](MutableByteSpan to) -> Result<size_t> {
        const size_t n = std::min(to.size(), bytes.size() - at);
        std::memcpy(to.data(), bytes.data() + at, n);
        at += n;
        return n;
      },
      "t");
  auto first = in.next();
  REQUIRE((first && *first));
  CHECK((*first)->path == name);
  CHECK((*first)->size == 3);
  char content[3];
  REQUIRE(in.read(std::as_writable_bytes(std::span(content))));
  CHECK(std::string(content, 3) == "abc");
  auto second = in.next();
  REQUIRE((second && *second));
  CHECK((*second)->size == uint64_t{1} << 40);
  CHECK((*second)->path == "large");
}
