#include "formats/zip/zip.h"

#include "formats/torch_save/archive.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
namespace fs = std::filesystem;

namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Entry {
  std::string name, data;
  std::string local_name = name;
  uint16_t flags = 0, method = 0;
  std::optional<uint32_t> offset = std::nullopt;  ///< a lie about the header's place
};

/// A stored archive. `zip64`: sizes, offsets and counts saturated, the true ones in the Zip64 fields.
std::string make_zip(const std::vector<Entry>& entries, bool zip64 = false) {
  std::string out, directory;
  for (const Entry& e : entries) {
    const auto at = static_cast<uint32_t>(out.size());
    const uint32_t crc = crc32(0, as_bytes(e.data)), size = static_cast<uint32_t>(e.data.size());
    put<uint32_t>(out, 0x04034b50);
    for (uint16_t v : {uint16_t{20}, e.flags, e.method, uint16_t{0}, uint16_t{0}}) put(out, v);
    for (uint32_t v : {crc, size, size}) put(out, v);
    put(out, static_cast<uint16_t>(e.local_name.size()));
    put<uint16_t>(out, 0);
    out += e.local_name + e.data;
    put<uint32_t>(directory, 0x02014b50);
    for (uint16_t v : {uint16_t{20}, uint16_t{20}, e.flags, e.method, uint16_t{0}, uint16_t{0}}) put(directory, v);
    put(directory, crc);
    for (int i = 0; i < 2; ++i) put(directory, zip64 ? UINT32_MAX : size);
    put(directory, static_cast<uint16_t>(e.name.size()));
    put<uint16_t>(directory, zip64 ? 28 : 0);
    for (int i = 0; i < 3; ++i) put<uint16_t>(directory, 0);
    put<uint32_t>(directory, 0);
    put(directory, zip64 ? UINT32_MAX : e.offset.value_or(at));
    directory += e.name;
    if (zip64) {
      put<uint16_t>(directory, 1);
      put<uint16_t>(directory, 24);
      for (uint64_t v : {uint64_t{size}, uint64_t{size}, uint64_t{at}}) put(directory, v);
    }
  }
  const uint64_t begin = out.size();
  out += directory;
  if (zip64) {
    const uint64_t end = out.size();
    put<uint32_t>(out, 0x06064b50);
    put<uint64_t>(out, 44);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, 0);
    for (uint64_t v : {uint64_t{entries.size()}, uint64_t{entries.size()}, uint64_t{directory.size()}, begin})
      put(out, v);
    put<uint32_t>(out, 0x07064b50);
    put<uint32_t>(out, 0);
    put(out, end);
    put<uint32_t>(out, 1);
  }
  put<uint32_t>(out, 0x06054b50);
  put<uint32_t>(out, 0);
  for (int i = 0; i < 2; ++i) put(out, static_cast<uint16_t>(zip64 ? UINT16_MAX : entries.size()));
  put(out, zip64 ? UINT32_MAX : static_cast<uint32_t>(directory.size()));
  put(out, zip64 ? UINT32_MAX : static_cast<uint32_t>(begin));
  put<uint16_t>(out, 0);
  return out;
}

std::string why_not_read(const std::string& bytes) {
  auto archive = zip::read_archive(zip::ByteSource(as_bytes(bytes), "z"));
  return archive ? "read" : archive.error().text();
}

const std::vector<Entry> kTwo = {{"t/a", "hello"}, {"t/b", ""}};

}  // namespace

TEST_CASE("zip: stored archives are read, with and without Zip64 fields, and with bytes behind the end") {
  for (bool zip64 : {false, true}) {
    for (const std::string& behind : {std::string(), std::string(10, 'x'), std::string(30000, 'x')}) {
      std::string bytes = make_zip(kTwo, zip64) + behind;
      zip::ByteSource source(as_bytes(bytes), "z");
      auto archive = zip::read_archive(source);
      REQUIRE_MESSAGE(archive, (archive ? "" : archive.error().text()));
      CHECK(archive->top == "t");
      const zip::Record* a = archive->find("a");
      REQUIRE(a != nullptr);
      CHECK(as_text(*zip::read_record(source, *a, 100)) == "hello");
      CHECK(zip::record_crc(source, *a).value() == a->crc);
      CHECK(archive->find("c") == nullptr);
    }
  }
}

TEST_CASE("zip: twins, overlaps, other names, encryption and compression are refused by name") {
  CHECK(why_not_read(make_zip({{"t/a", "x"}, {"t/a", "y"}})).find("two records are called t/a") != std::string::npos);
  CHECK(why_not_read(make_zip({{"t/a", "x"}, {"t/b", "y", "t/c"}})).find("another name") != std::string::npos);
  CHECK(why_not_read(make_zip({{"t/a", "x"}, {"t/a", "y", "t/a", 0, 0, 0}})) != "read");
  CHECK(why_not_read(make_zip({{"t/a", "x", "t/a", 1}})).find("encrypted") != std::string::npos);
  CHECK(why_not_read(make_zip({{"t/a", "x", "t/a", 0, 8}})).find("deflate") != std::string::npos);
  CHECK(why_not_read(make_zip({{"t/a", "x", "t/a", 0, 93}})).find("zstd") != std::string::npos);
  CHECK(why_not_read("").find("no end record") != std::string::npos);
  CHECK(why_not_read(make_zip({})) == "read");
  // The second entry's name and header are those of a record hidden in the data of the first.
  std::string inner = make_zip({{"t/b", "y"}}).substr(0, 34);
  CHECK(why_not_read(make_zip({{"t/a", inner}, {"t/b", "y", "t/b", 0, 0, 33}})).find("overlap") != std::string::npos);
}

TEST_CASE("zip: cut at every byte it is refused") {
  for (bool zip64 : {false, true}) {
    const std::string good = make_zip(kTwo, zip64);
    for (size_t n = 0; n < good.size(); ++n) CHECK(why_not_read(good.substr(0, n)) != "read");
  }
}

TEST_CASE("zip: every header byte changed and every length a lie, no record ever reaches outside") {
  for (bool zip64 : {false, true}) {
    const std::string good = make_zip(kTwo, zip64);
    for (size_t i = 0; i < good.size(); ++i) {
      for (int value = 0; value < 256; value += 5) {
        std::string bad = good;
        bad[i] = static_cast<char>(value);
        auto archive = zip::read_archive(zip::ByteSource(as_bytes(bad), "z"));
        if (!archive) continue;
        for (const zip::Record& record : archive->records) {
          bool inside = record.offset <= bad.size() && record.size <= bad.size() - record.offset;
          CHECK(inside);
        }
      }
    }
  }
}

TEST_CASE("zip: an item is bounded by its own range, not by its file") {
  TempDir dir;
  const std::string inside = make_zip(kTwo);
  REQUIRE(io::write_file(dir.path / "f", "before" + inside + "behind"));
  auto fd = io::open_file(dir.path / "f", 0);
  REQUIRE(fd);
  CHECK(zip::read_archive(zip::ByteSource(fd->get(), 6, inside.size(), "f")));
  CHECK(!zip::read_archive(zip::ByteSource(fd->get(), 6, inside.size() - 1, "f")));
  CHECK(!zip::read_archive(zip::ByteSource(fd->get(), 7, inside.size() - 1, "f")));
  CHECK(!zip::read_archive(zip::ByteSource(fd->get(), 6, inside.size() + 1000, "f")));
}

TEST_CASE("zip: the odd archives of the fixtures are read or refused by name") {
  auto root = fixture("tensorstore-zip");
  if (!root) return;
  auto of = [&](const char* name) {
    auto bytes = io::read_file(*root / name, 1 << 20);
    REQUIRE(bytes);
    return why_not_read(*bytes);
  };
  CHECK(of("zip64_one_empty_file.zip") == "read");
  CHECK(of("data_descriptor_store_compression.zip") == "read");
  CHECK(of("zip_deflate.zip").find("deflate") != std::string::npos);
  CHECK(of("zip_bzip2.zip").find("bzip2") != std::string::npos);
  CHECK(of("zip_xz.zip").find("xz") != std::string::npos);
  CHECK(of("zip_zstd.zip").find("zstd") != std::string::npos);
}

TEST_CASE("zip: the hostile archives of the fixtures are refused") {
  auto root = fixture("picklescan-hostile");
  if (!root) return;
  size_t refused = 0;
  for (const auto& entry : fs::directory_iterator(*root)) {
    if (entry.path().extension() != ".zip") continue;
    auto bytes = io::read_file(entry.path(), 1 << 20);
    REQUIRE(bytes);
    CHECK(!formats::read_torch_archive(zip::ByteSource(as_bytes(*bytes), "z")));
    ++refused;
  }
  CHECK(refused == 6);
}
