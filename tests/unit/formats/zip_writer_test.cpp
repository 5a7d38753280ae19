#include <doctest/doctest.h>

#include <cstring>

#include "formats/zip/writer.h"

using namespace ckpt;

namespace {
template <class T>
T at(const std::string& bytes, size_t offset) {
  T out;
  REQUIRE(offset + sizeof out <= bytes.size());
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}
}  // namespace

TEST_CASE("zip layout: data starts at its alignment, records and directory follow without gaps") {
  for (uint64_t size : {0, 1, 63, 64, 65, 100'000}) {
    zip::Layout zip;
    zip.add("archive/data.pkl", size);
    zip.add("archive/data/0", 2 * size, 4096);
    zip.add("archive/version", 2);
    CHECK(zip.header_offset(0) == 0);
    CHECK(zip.data_offset(0) % 64 == 0);
    CHECK(zip.data_offset(1) % 4096 == 0);
    CHECK(zip.header_offset(1) == zip.data_offset(0) + size);
    CHECK(zip.directory_offset() == zip.data_offset(2) + 2);
    const std::vector<uint32_t> crcs = {1, 2, 3};
    for (size_t i = 0; i < 3; ++i) {
      std::string header = zip.header(i, crcs[i]);
      CHECK(header.size() == zip.data_offset(i) - zip.header_offset(i));
      CHECK(at<uint32_t>(header, 0) == 0x04034b50);
      CHECK(at<uint32_t>(header, 14) == crcs[i]);
      CHECK(at<uint32_t>(header, 22) == zip.data_size(i));
    }
    std::string directory = zip.directory(crcs);
    CHECK(zip.size() == zip.directory_offset() + directory.size());
    CHECK(at<uint32_t>(directory, directory.size() - 22) == 0x06054b50);
    CHECK(at<uint32_t>(directory, directory.size() - 6) == zip.directory_offset());
    CHECK(at<uint16_t>(directory, directory.size() - 12) == 3);
  }
}

TEST_CASE("zip layout: sizes and offsets past 32 bits go to Zip64 fields, and the ordinary ones are saturated") {
  const uint64_t big = 0xffffffff;
  zip::Layout zip;
  zip.add("a/data/0", big);
  zip.add("a/version", 2);
  std::string header = zip.header(0, 7);
  CHECK(at<uint32_t>(header, 18) == 0xffffffff);
  CHECK(at<uint16_t>(header, 30 + 8) == 1);
  CHECK(at<uint64_t>(header, 30 + 8 + 4) == big);
  CHECK(at<uint16_t>(header, 30 + 8 + 20) == 0x4246);
  const std::vector<uint32_t> crcs = {7, 8};
  std::string directory = zip.directory(crcs);
  CHECK(directory.size() == 46 + 8 + 20 + 46 + 9 + 12 + 56 + 20 + 22);
  // The second record's header lies past 4 GiB: its only Zip64 value is that offset.
  const size_t second = 46 + 8 + 20;
  CHECK(at<uint32_t>(directory, second + 42) == 0xffffffff);
  CHECK(at<uint16_t>(directory, second + 46 + 9 + 2) == 8);
  CHECK(at<uint64_t>(directory, second + 46 + 9 + 4) == zip.header_offset(1));
  const size_t end64 = second + 46 + 9 + 12;
  CHECK(at<uint32_t>(directory, end64) == 0x06064b50);
  CHECK(at<uint64_t>(directory, end64 + 48) == zip.directory_offset());
  CHECK(at<uint64_t>(directory, end64 + 56 + 8) == zip.directory_offset() + end64);
  CHECK(at<uint32_t>(directory, directory.size() - 6) == 0xffffffff);

  zip::Layout below;
  below.add("a/data/0", big - 1000);
  CHECK(at<uint32_t>(below.header(0, 7), 22) == big - 1000);
  CHECK(below.size() == below.directory_offset() + 46 + 8 + 22);
}
