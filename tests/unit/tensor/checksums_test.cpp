#include "lib/tensor/checksums.h"

#include <doctest/doctest.h>

#include <thread>

#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::tensor;

namespace {

/// A file of three records: [0, 1000), [1000, 1500), [1600, 2600).
struct Source {
  test::TempDir dir;
  std::string bytes;
  Catalog catalog;

  Source() {
    for (int i = 0; i < 2600; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 256));
    catalog.root = dir.path;
    catalog.files = {{"data", bytes.size()}};
    for (auto [first, length] : {std::pair<uint64_t, uint64_t>{0, 1000}, {1000, 500}, {1600, 1000}}) {
      catalog.checksums.push_back({{0, first, length}, crc(first, length), "at " + std::to_string(first)});
    }
    REQUIRE(io::write_file(dir.path / "data", bytes));
  }
  uint32_t crc(uint64_t first, uint64_t length) const { return crc32(0, as_bytes(bytes).subspan(first, length)); }
};

std::string settled(ChecksumLedger& ledger, const std::set<uint32_t>& records) {
  auto done = ledger.settle(records, Cancel());
  if (!done) return done.error().text();
  auto right = ledger.check();
  return right ? "" : right.error().message;
}

}  // namespace

TEST_CASE("checksums: runs in any order make a record's CRC, gaps are read") {
  Source source;
  FileCache files(source.catalog);
  ChecksumLedger ledger(source.catalog, files);
  CHECK(ledger.note_run({0, 600, 400}, source.crc(600, 400), "a") == std::vector<uint32_t>{0});
  CHECK(ledger.note_run({0, 0, 600}, source.crc(0, 600), "a") == std::vector<uint32_t>{0});
  CHECK(ledger.note_run({0, 1100, 50}, source.crc(1100, 50), "b") == std::vector<uint32_t>{1});
  CHECK(ledger.note_run({0, 1120, 50}, source.crc(1120, 50), "b") == std::vector<uint32_t>{1});  // read twice
  CHECK(ledger.note_run({0, 900, 200}, source.crc(900, 200), "c") == std::vector<uint32_t>{0, 1});
  CHECK(ledger.note_run({0, 1500, 100}, 1, "d").empty());
  CHECK(settled(ledger, {0, 1, 2}) == "");
  CHECK(ledger.take_findings().empty());
}

TEST_CASE("checksums: what differs is damage with its tensor and place, whoever read it") {
  Source source;
  source.catalog.checksums[1].crc ^= 1;
  source.catalog.checksums[2].crc = 0;
  FileCache files(source.catalog);
  ChecksumLedger ledger(source.catalog, files);
  Tensor t;
  t.key = "w";
  t.shape = {1500};
  t.shards.resize(1);
  t.shards[0].where = {0, 1000, 1500};
  CHECK(ledger.note_tensor(t) == std::vector<uint32_t>{1, 2});
  CHECK(settled(ledger, {2}) == "");
  CHECK(settled(ledger, {1}) == "damaged: data at byte 1000: w: the CRC of record at 1000 differs");
  const auto findings = ledger.take_findings();
  REQUIRE(findings.size() == 2);
  CHECK_FALSE(findings[0].warning);
  CHECK(findings[1].warning);
  CHECK(findings[1].message.find("1 CRCs were not computed") == 0);
}

TEST_CASE("checksums: a run whose bytes changed is found, and many may ask for a record at once") {
  Source source;
  FileCache files(source.catalog);
  ChecksumLedger ledger(source.catalog, files);
  ledger.note_run({0, 0, 1000}, source.crc(0, 1000) ^ 4, "a");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { CHECK(ledger.settle({0, 1, 2}, Cancel())); });
  for (std::thread& thread : threads) thread.join();
  CHECK(ledger.take_findings().size() == 1);
}
