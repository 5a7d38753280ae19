#include <fmt/format.h>
#include <zlib.h>

#include "formats/npy/header.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
namespace fs = std::filesystem;

namespace {

std::string header(const std::string& dictionary, int version = 1) {
  std::string out("\x93NUMPY", 6);
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(dictionary.size() >> (8 * i) & 0xff);
  return out + dictionary;
}

std::string dictionary(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }   \n";
}

std::string why(const std::string& text) {
  auto parsed = parse_npy_header(as_bytes(header(text)));
  return parsed ? "read" : parsed.error().message;
}

template <class Value>
std::string raw(std::initializer_list<Value> values) {
  std::string out;
  for (Value v : values) out.append(reinterpret_cast<const char*>(&v), sizeof v);
  return out;
}

/// SHA-256 of the only array of a file with this content.
std::string sha_of(const std::string& content) {
  TempDir dir;
  REQUIRE(io::write_file(dir.path / "x.npy", content));
  auto catalog = open_ok(dir.path / "x.npy");
  REQUIRE(catalog.tensors.size() == 1);
  CHECK(catalog.tensors[0].key == "x");
  return tensor_sha256(catalog, catalog.tensors[0]);
}

std::string deflated(const std::string& data) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(data.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// A zip archive of one member.
std::string archive(const std::string& name, const std::string& content, bool compress) {
  const std::string data = compress ? deflated(content) : content;
  const uint32_t crc = crc32(0, as_bytes(content));
  std::string fields = raw<uint16_t>({static_cast<uint16_t>(compress ? 8 : 0), 0, 0}) +
                       raw<uint32_t>({crc, static_cast<uint32_t>(data.size()), static_cast<uint32_t>(content.size())}) +
                       raw<uint16_t>({static_cast<uint16_t>(name.size()), 0});
  const std::string local = "PK\x03\x04" + raw<uint16_t>({20, 0}) + fields + name + data;
  const std::string central =
      "PK\x01\x02" + raw<uint16_t>({20, 20, 0}) + fields + raw<uint16_t>({0, 0, 0}) + raw<uint32_t>({0, 0}) + name;
  return local + central + "PK\x05\x06" + raw<uint16_t>({0, 0, 1, 1}) +
         raw<uint32_t>({static_cast<uint32_t>(central.size()), static_cast<uint32_t>(local.size())}) +
         raw<uint16_t>({0});
}

}  // namespace

TEST_CASE("npy: row-major, column-major and big-endian arrays give the same elements") {
  const std::string wanted = sha256_hex(as_bytes(raw<int16_t>({0, 1, 2, 3, 4, 5})));
  CHECK(sha_of(header(dictionary("'<i2'", "(2, 3)")) + raw<int16_t>({0, 1, 2, 3, 4, 5})) == wanted);
  CHECK(sha_of(header(dictionary("'<i2'", "(2, 3)", "True")) + raw<int16_t>({0, 3, 1, 4, 2, 5})) == wanted);
  CHECK(sha_of(header(dictionary("'>i2'", "(2, 3)"), 2) + std::string("\0\0\0\1\0\2\0\3\0\4\0\5", 12)) == wanted);
  CHECK(sha_of(header(dictionary("'>i2'", "(2, 3)", "True"), 3) + std::string("\0\0\0\3\0\1\0\4\0\2\0\5", 12)) ==
        wanted);
  CHECK(sha_of(header(dictionary("'>c8'", "(1,)")) + std::string("\x3f\x80\0\0\x40\0\0\0", 8)) ==
        sha256_hex(as_bytes(raw<float>({1, 2}))));
  CHECK(sha_of(header(dictionary("'<f8'", "()")) + raw<double>({2.5})) == sha256_hex(as_bytes(raw<double>({2.5}))));
  CHECK(sha_of(header(dictionary("'<f8'", "(0, 3)"))) == sha256_hex({}));
}

TEST_CASE("npy: a large column-major array comes apart into slabs that are decoded one by one") {
  TempDir dir;
  constexpr uint32_t kRows = 3000, kColumns = 4000;
  std::string stored(size_t{kRows} * kColumns * 4, '\0'), plain(stored.size(), '\0');
  auto* from = reinterpret_cast<uint32_t*>(stored.data());
  auto* to = reinterpret_cast<uint32_t*>(plain.data());
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t column = 0; column < kColumns; ++column)
      from[column * kRows + row] = to[row * kColumns + column] = row * kColumns + column;
  }
  REQUIRE(io::write_file(dir.path / "x.npy", header(dictionary("'<u4'", "(3000, 4000)", "True")) + stored));
  auto catalog = open_ok(dir.path / "x.npy");
  CHECK(catalog.tensors[0].shards.size() == 3);
  CHECK(tensor_sha256(catalog, catalog.tensors[0], 64 << 20) == sha256_hex(as_bytes(plain)));
}

TEST_CASE("npy: headers are read as literals, and what is not one is refused") {
  CHECK(why(dictionary("'<f4'", "(2, 3)")) == "read");
  CHECK(why(dictionary("\"<f4\"", "(2L, 3L)")) == "read");
  CHECK(why("{'shape': (3,), 'descr': '<f4', 'fortran_order': False}") == "read");
  CHECK(why(dictionary("'|O'", "(2,)")).find("object") != std::string::npos);
  CHECK(why(dictionary("[('a', '<f4')]", "(2,)")).find("structured") != std::string::npos);
  CHECK(why(dictionary("'<U7'", "(2,)")).find("<U7") != std::string::npos);
  CHECK(why(dictionary("'<M8[ns]'", "(2,)")).find("<M8[ns]") != std::string::npos);
  CHECK(why(dictionary("'|V2'", "(2,)")).find("|V2") != std::string::npos);
  CHECK(why(dictionary("'<f16'", "(2,)")).find("<f16") != std::string::npos);
  CHECK(why(dictionary("'|f4'", "(2,)")).find("|f4") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(3)")).find("tuple") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "3")).find("tuple") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(-3,)")).find("sizes") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(2**3,)")).find("tuple of sizes") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(__import__('os'),)")).find("sizes") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(4294967296, 4294967296)")).find("counted") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(18446744073709551616,)")).find("sizes") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(2,)", "0")).find("fortran_order") != std::string::npos);
  CHECK(why("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}").find("twice") !=
        std::string::npos);
  CHECK(why("{'descr': '<f4', 'fortran_order': False}").find("missing") != std::string::npos);
  CHECK(why(dictionary("'<f4'", "(2,)") + "x").find("follows") != std::string::npos);
  auto bfloat16 = parse_npy_header(as_bytes(header(dictionary("'<V2'", "(2,)"))));
  REQUIRE(bfloat16);
  CHECK(bfloat16->void_type);
  CHECK(!parse_npy_header(as_bytes(header(dictionary("'<f4'", "(2,)"), 4))));
}

TEST_CASE("npy: cut at every byte, changed at every byte a file is refused or read, never more") {
  TempDir dir;
  const fs::path path = dir.path / "x.npy";
  const std::string good = header(dictionary("'<i2'", "(2, 3)", "True")) + raw<int16_t>({0, 3, 1, 4, 2, 5});
  for (size_t n = 6; n < good.size(); ++n) {
    REQUIRE(io::write_file(path, good.substr(0, n)));
    CHECK(open_error(path, Code::kCorrupt) != "opened");
  }
  for (size_t i = 0; i < good.size() - 12; ++i) {
    for (int value : std::initializer_list<int>{0, '\'', '(', '9', '-', 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      REQUIRE(io::write_file(path, bad));
      auto catalog = formats::open_checkpoint(path, {});
      if (catalog && !catalog->tensors.empty()) CHECK(catalog->tensors[0].bytes() <= good.size());
    }
  }
}

TEST_CASE("npz: members are read where they are stored and through zlib where they are deflated") {
  TempDir dir;
  const fs::path path = dir.path / "x.npz";
  const std::string array = header(dictionary("'>i2'", "(2, 3)", "True")) + std::string("\0\0\0\3\0\1\0\4\0\2\0\5", 12);
  for (bool compress : {false, true}) {
    const std::string good = archive("layer/weight.npy", array, compress);
    REQUIRE(io::write_file(path, good));
    auto catalog = open_ok(path);
    REQUIRE(catalog.tensors.size() == 1);
    CHECK(catalog.format == "npz");
    CHECK(catalog.tensors[0].key == "layer/weight");
    CHECK(tensor_sha256(catalog, catalog.tensors[0]) == sha256_hex(as_bytes(raw<int16_t>({0, 1, 2, 3, 4, 5}))));
    for (size_t n = 30; n < good.size(); ++n) {
      REQUIRE(io::write_file(path, good.substr(0, n)));
      CHECK(!formats::open_checkpoint(path, {}));
    }
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 0x21);
      REQUIRE(io::write_file(path, bad));
      auto changed = formats::open_checkpoint(path, {});
      for (size_t t = 0; changed && t < changed->tensors.size(); ++t) {
        if (changed->tensors[t].bytes() < 1000) (void)tensor_sha256(*changed, changed->tensors[t]);
      }
    }
  }
  std::string bad = archive("w.npy", array, true);
  bad[14] = bad[bad.size() - 22 - 51 + 16] = 'x';  // the CRC, in both headers
  REQUIRE(io::write_file(path, bad));
  auto catalog = open_ok(path);
  CHECK(tensor_sha256(catalog, catalog.tensors[0]).find("CRC") != std::string::npos);
  REQUIRE(io::write_file(path, archive("w.npy", array + "more", true)));
  CHECK(open_error(path, Code::kCorrupt).find("bytes follow") != std::string::npos);
  REQUIRE(io::write_file(path, archive("w.npy", array.substr(0, array.size() - 1), true)));
  CHECK(open_error(path, Code::kCorrupt).find("cut off") != std::string::npos);
  REQUIRE(io::write_file(path, archive("notes.txt", "x", true)));
  CHECK(open_ok(path).unsupported.size() == 1);
}

TEST_CASE("npz: a type that nobody knows is unsupported where the CRC is right, and damage where it is not") {
  TempDir dir;
  const fs::path path = dir.path / "x.npz";
  const std::string known = header(dictionary("'<f4'", "(2,)")) + std::string(8, 'x');
  std::string unknown = known;
  unknown.replace(unknown.find("<f4"), 3, "<f6");
  const std::string before = archive("w.npy", known, false);
  for (bool compress : {false, true}) {
    std::string file = archive("w.npy", unknown, compress);
    REQUIRE(io::write_file(path, file));
    CHECK(open_ok(path).unsupported.size() == 1);
    const size_t central = file.size() - 22 - 51;
    file.replace(14, 4, before, 14, 4);  // the CRC of what it was, in both headers
    file.replace(central + 16, 4, before, 14, 4);
    REQUIRE(io::write_file(path, file));
    CHECK(open_error(path, Code::kCorrupt).find("CRC of w.npy differs") != std::string::npos);
  }
}

TEST_CASE("npz: a stream that holds more than its directory says is refused, not inflated") {
  TempDir dir;
  const std::string array = header(dictionary("'|u1'", "(10,)")) + std::string(10, 'x');
  std::string bomb = archive("w.npy", array + std::string(100'000, '\0'), true);
  const size_t central = bomb.size() - 22 - 51;
  const auto size = static_cast<uint32_t>(array.size());
  std::memcpy(bomb.data() + 22, &size, 4);
  std::memcpy(bomb.data() + central + 24, &size, 4);
  REQUIRE(io::write_file(dir.path / "x.npz", bomb));
  auto catalog = open_ok(dir.path / "x.npz");
  CHECK(tensor_sha256(catalog, catalog.tensors[0]).find("more than the array") != std::string::npos);
}

TEST_CASE("npy: a folder gives its arrays by path; what is no number is listed") {
  TempDir dir;
  fs::create_directories(dir.path / "layers/0");
  REQUIRE(io::write_file(dir.path / "layers/0/w.npy", header(dictionary("'|u1'", "(2,)")) + "ab"));
  REQUIRE(io::write_file(dir.path / "model.b.npy", header(dictionary("'|u1'", "(1,)")) + "c"));
  REQUIRE(io::write_file(dir.path / "names.npy", header(dictionary("'|O'", "(1,)")) + "c"));
  REQUIRE(io::write_file(dir.path / "README", "x"));
  auto catalog = open_ok(dir.path);
  REQUIRE(catalog.tensors.size() == 2);
  CHECK(catalog.tensors[0].key == "layers/0/w");
  CHECK(catalog.tensors[1].key == "model.b");
  REQUIRE(catalog.unsupported.size() == 1);
  CHECK(catalog.unsupported[0].key == "names");
  CHECK(catalog.unsupported[0].why.find("dtype object") == 0);
  CHECK(catalog.unsupported[0].pickle.length == 1);
  REQUIRE(io::write_file(dir.path / "cut.npy", header(dictionary("'|u1'", "(2,)")) + "a"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("1 bytes instead of 2") != std::string::npos);
}
