// The file "pagemap": which pages an image says something of, and where their bytes lie. Little-endian.
//
//   header, 32 bytes
//     0  char[8]  magic "CKPTPMAP"          16  uint32  page size, 4096
//     8  uint32   version, 3                20  uint32  block size, 65536
//    12  uint32   record size, 48           24  uint64  number of records
//   records, 48 bytes each, by address; several of one address form a stack, the top first
//     0  uint64   address of the block      16  byte[16] XXH3-128 of the packed pages before compression (low half
//     first) 8  uint16   data mask                 32  uint64   offset in the pages file
//    10  uint16   zero mask                 40  uint16   stored length, less one
//    12  uint16   parent mask               42  uint16   whose chunk it is: 0 this image's, n that of its nth ancestor
//    14  uint8    codec: 0 raw, 1 zstd      44  uint32   codec zstd: low 32 bits of XXH3-128 of the stored bytes; raw:
//    0 15  uint8    pages file: 0 "pages", n "pages.n"
//
// The top record of an address decides on every page of the block. What its parent mask names is decided by the next
// one below, and what that of the last one names by the parent image. A page named by no mask: the image says nothing
// of it. So pages that were copied in iterations lie below what was copied last, and what they have outdated stays
// unseen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/store/chunk.h"

namespace ckpt::store {

constexpr size_t kMaxPagesFiles = 64;
/// "pages", "pages.1", ...
std::string pages_file_name(size_t index);

/// One record as it lies in the file. A record without data pages has zeros from `codec` on.
struct PagemapRecord {
  uint64_t address = 0;
  uint16_t data_mask = 0, zero_mask = 0, parent_mask = 0;
  Codec codec = Codec::kRaw;
  uint8_t file = 0;
  Hash128 hash;
  uint64_t offset = 0;
  uint16_t length_less_one = 0;
  uint16_t ancestor = 0;
  uint32_t stored_check = 0;

  uint32_t stored_length() const { return uint32_t{length_less_one} + 1; }
  /// 1 to kBlockSize.
  void set_stored_length(size_t length) { length_less_one = static_cast<uint16_t>(length - 1); }
  uint16_t all_pages() const { return static_cast<uint16_t>(data_mask | zero_mask | parent_mask); }
};
static_assert(sizeof(PagemapRecord) == 48);

/// The check of a zstd chunk's stored bytes: a frame has bits that its content does not depend on.
uint32_t stored_check(ByteSpan stored);

/// What is wrong with the place of a chunk among pages files of these sizes, or null.
inline const char* check_place(const PagemapRecord& record, const std::vector<uint64_t>& pages_sizes) {
  if (record.file >= pages_sizes.size()) return "there is no such pages file";
  const uint64_t size = pages_sizes[record.file];
  return record.offset <= size && record.stored_length() <= size - record.offset
             ? nullptr
             : "its bytes lie past the end of the pages file";
}

/// The first 32 bytes of the file; the records follow in order, as they lie in memory.
std::string pagemap_header(uint64_t record_count);

/// Parses the file as its bytes arrive, so that memory grows only with records that are sound. Hostile input.
class PagemapParser {
 public:
  /// `pages_sizes`: of the image's pages files; its own chunks must lie inside them. `has_parent`: parent masks and
  /// chunks of ancestors are allowed; whether those are there, `open_chain` finds out.
  PagemapParser(std::vector<uint64_t> pages_sizes, bool has_parent)
      : pages_sizes_(std::move(pages_sizes)), has_parent_(has_parent) {}

  /// The file really is that long: room for its records, so that they need not be moved.
  void expect(uint64_t file_size) { records_.reserve(file_size / sizeof(PagemapRecord)); }
  /// Any number of bytes. kCorrupt names the record; kUnsupported: another version.
  Result<void> feed(ByteSpan bytes);
  /// After the last byte: all records that the header promised.
  Result<std::vector<PagemapRecord>> finish();

 private:
  Result<void> take_header(const std::byte* raw);
  /// What is wrong with the one that follows, or null: there is one for every 64 KiB of a process.
  const char* check_next(const PagemapRecord& record) const;
  /// What the lowest record of a block leaves open is the parent's.
  bool stack_ends() const { return records_.empty() || records_.back().parent_mask == 0 || has_parent_; }
  Error damaged(size_t record, const char* what) const;

  std::vector<uint64_t> pages_sizes_;
  bool has_parent_;
  bool header_seen_ = false;
  uint64_t expected_ = 0;
  std::vector<std::byte> partial_;
  std::vector<PagemapRecord> records_;
};

}  // namespace ckpt::store
