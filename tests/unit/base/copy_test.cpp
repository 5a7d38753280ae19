#include <doctest/doctest.h>
#include <fcntl.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "lib/base/copy.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using ckpt::test::TempDir;

namespace {
std::vector<std::byte> random_bytes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}
uint32_t zlib_crc(uint32_t crc, ByteSpan data) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}
}  // namespace

TEST_CASE("crc32: known answers") {
  CHECK(crc32(0, {}) == 0);
  CHECK(crc32(0, as_bytes("123456789")) == 0xCBF43926);
  CHECK(crc32(0, as_bytes("The quick brown fox jumps over the lazy dog")) == 0x414FA339);
}

TEST_CASE("crc32: every length and alignment around the folding width gives zlib's value") {
  auto data = random_bytes(600, 1);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t n = 0; n + start <= data.size(); ++n) {
      ByteSpan part = ByteSpan(data).subspan(start, n);
      REQUIRE(crc32(0, part) == (n == 0 ? 0 : zlib_crc(0, part)));
      REQUIRE(crc32(0xdeadbeef, part) == (n == 0 ? 0xdeadbeef : zlib_crc(0xdeadbeef, part)));
    }
  }
}

TEST_CASE("crc32: going on from an earlier value, or combining, equals one pass") {
  auto data = random_bytes(1 << 20, 2);
  const uint32_t whole = zlib_crc(0, data);
  for (size_t cut :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4096}, data.size() - 1, data.size()}) {
    ByteSpan first = ByteSpan(data).first(cut), second = ByteSpan(data).subspan(cut);
    CHECK(crc32(crc32(0, first), second) == whole);
    CHECK(crc32_combine(crc32(0, first), crc32(0, second), second.size()) == whole);
  }
}

TEST_CASE("copy_range: any offsets and lengths arrive, a short source is named as truncated") {
  TempDir dir;
  auto data = random_bytes(700'001, 3);
  REQUIRE(io::write_file(dir.path / "from", as_text(data)));
  auto from = io::open_file(dir.path / "from", O_RDONLY);
  auto to = io::open_file(dir.path / "to", O_RDWR | O_CREAT);
  REQUIRE(from);
  REQUIRE(to);
  REQUIRE(io::copy_range(from->get(), 13, to->get(), 4097, 600'000, "x"));
  std::vector<std::byte> back(600'000);
  REQUIRE(io::pread_exact(to->get(), back, 4097, "x"));
  CHECK(std::equal(back.begin(), back.end(), data.begin() + 13));
  CHECK(io::copy_range(from->get(), 0, to->get(), 0, 0, "x"));
  auto beyond = io::copy_range(from->get(), 700'000, to->get(), 0, 2, "from");
  REQUIRE_FALSE(beyond);
  CHECK(beyond.error().code == Code::kCorrupt);
}

TEST_CASE("copy_range: from another file system, and from a file that the kernel cannot copy") {
  TempDir dir;
  auto proc = io::open_file("/proc/self/cmdline", O_RDONLY);
  auto to = io::open_file(dir.path / "to", O_RDWR | O_CREAT);
  REQUIRE(proc);
  REQUIRE(to);
  auto expected = io::read_file("/proc/self/cmdline", 1 << 20);
  REQUIRE(expected);
  REQUIRE(io::copy_range(proc->get(), 0, to->get(), 5, expected->size(), "cmdline"));
  std::string back(expected->size(), 0);
  REQUIRE(io::pread_exact(to->get(), {reinterpret_cast<std::byte*>(back.data()), back.size()}, 5, "to"));
  CHECK(back == *expected);
}

TEST_CASE("clone_range: either shares the bytes or changes nothing") {
  TempDir dir;
  auto data = random_bytes(64 << 10, 4);
  REQUIRE(io::write_file(dir.path / "from", as_text(data)));
  auto from = io::open_file(dir.path / "from", O_RDONLY);
  auto to = io::open_file(dir.path / "to", O_RDWR | O_CREAT);
  REQUIRE(from);
  REQUIRE(to);
  bool cloned = io::clone_range(from->get(), 4096, to->get(), 8192, 16384);
  auto st = io::stat_fd(to->get(), "to");
  REQUIRE(st);
  CHECK(st->st_size == (cloned ? 8192 + 16384 : 0));
  if (cloned) {
    std::vector<std::byte> back(16384);
    REQUIRE(io::pread_exact(to->get(), back, 8192, "to"));
    CHECK(std::equal(back.begin(), back.end(), data.begin() + 4096));
  }
  CHECK_FALSE(io::clone_range(from->get(), 0, to->get(), 1, 4096));
}
