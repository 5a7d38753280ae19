#include "lib/base/result.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <memory>
#include <set>

#include "lib/base/bytes.h"
#include "lib/base/checked.h"
#include "lib/base/digest.h"

using namespace ckpt;

namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return fail(Code::kUsage, std::to_string(n), "is odd");
  return n / 2;
}

Result<int> quarter(int n) {
  CKPT_TRY_ASSIGN(int once, half(n));
  CKPT_TRY_ASSIGN(int twice, half(once));
  return twice;
}

Result<void> check_quarter(int n) {
  CKPT_TRY(half(n));
  CKPT_TRY_ASSIGN(int q, quarter(n));
  if (q == 0) return fail(Code::kCorrupt, "", "is nothing");
  return {};
}

}  // namespace

TEST_CASE("result: a value goes through, the first error comes back unchanged") {
  CHECK(quarter(8).value() == 2);
  auto failed = quarter(6);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().text() == "3: is odd");
  CHECK(check_quarter(8));
  CHECK(check_quarter(6).error().code == Code::kUsage);
  CHECK(check_quarter(0).error().code == Code::kCorrupt);
  CHECK(half(3).value_or(7) == 7);
}

TEST_CASE("result: carries what can only be moved") {
  auto make = [](bool good) -> Result<std::unique_ptr<int>> {
    if (!good) return fail(Code::kIo, "", "no");
    return std::make_unique<int>(5);
  };
  std::unique_ptr<int> owned = make(true).value();
  CHECK(*owned == 5);
  CHECK_FALSE(make(false));
}

TEST_CASE("errors: exit codes are the published ones, and every code has a name of its own") {
  const std::pair<Code, int> published[] = {
      {Code::kCorrupt, 1},    {Code::kUsage, 2},          {Code::kPartial, 3}, {Code::kNotFound, 4},
      {Code::kPermission, 5}, {Code::kUnsupported, 6},    {Code::kBusy, 7},    {Code::kIo, 8},
      {Code::kNoRoom, 9},     {Code::kTargetAltered, 10}, {Code::kBug, 70},    {Code::kInterrupted, 130}};
  std::set<std::string_view> names;
  for (const auto& [code, number] : published) {
    CHECK(exit_code(code) == number);
    names.insert(code_name(code));
  }
  CHECK(names.size() == std::size(published));
}

TEST_CASE("errors: errno decides the code and is spelled out") {
  CHECK(sys_error(ENOENT, "f", "cannot open").code == Code::kNotFound);
  CHECK(sys_error(ESRCH, "f", "x").code == Code::kNotFound);
  CHECK(sys_error(EACCES, "f", "x").code == Code::kPermission);
  CHECK(sys_error(ENOSPC, "f", "x").code == Code::kNoRoom);
  CHECK(sys_error(EMFILE, "f", "x").code == Code::kNoRoom);
  CHECK(sys_error(ENOSYS, "f", "x").code == Code::kUnsupported);
  CHECK(sys_error(EBUSY, "f", "x").code == Code::kBusy);
  CHECK(sys_error(ENAMETOOLONG, "f", "x").code == Code::kUsage);
  CHECK(sys_error(EIO, "f", "x").code == Code::kIo);
  CHECK(sys_error(ENOENT, "f", "cannot open").text() == "f: cannot open: No such file or directory");
}

TEST_CASE("bytes: a cursor never leaves its data") {
  using namespace std::string_view_literals;
  ByteReader in(as_bytes("\x01\x00\x00\x00line\nrest"sv));
  CHECK(in.read<uint32_t>() == 1u);
  CHECK(in.line() == "line");
  CHECK_FALSE(in.line());
  CHECK_FALSE(in.take(UINT64_MAX));
  CHECK_FALSE(in.read<uint64_t>());
  CHECK(in.remaining() == 4);
  CHECK_FALSE(in.seek(100));
  CHECK(in.take(4));
  CHECK_FALSE(in.take(1));
}

TEST_CASE("checked arithmetic: an overflow is no value") {
  CHECK(checked_add<uint64_t>(1, 2) == 3u);
  CHECK_FALSE(checked_add<uint64_t>(UINT64_MAX, 1));
  CHECK_FALSE(checked_mul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32));
  const uint64_t big[] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
  CHECK_FALSE(checked_product(big));
  CHECK(checked_product({}) == 1u);
  CHECK_FALSE(checked_cast<uint32_t>(uint64_t{1} << 32));
  CHECK_FALSE(checked_cast<uint32_t>(-1));
  CHECK(checked_cast<uint8_t>(255) == 255);
}

TEST_CASE("digests: published test vectors") {
  CHECK(sha256_hex(as_bytes("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(to_hex(xxh3_128({})) == "99aa06d3014798d86001c324468d497f");
  CHECK(crc32(0, as_bytes("123456789")) == 0xcbf43926u);
  const std::string_view text = "123456789";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    uint32_t a = crc32(0, as_bytes(text.substr(0, cut))), b = crc32(0, as_bytes(text.substr(cut)));
    CHECK(crc32_combine(a, b, text.size() - cut) == 0xcbf43926u);
  }
}
