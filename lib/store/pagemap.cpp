#include "lib/store/pagemap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/store/image.h"

namespace ckpt::store {

namespace {

constexpr char kMagic[8] = {'C', 'K', 'P', 'T', 'P', 'M', 'A', 'P'};
constexpr uint32_t kVersion = 3;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t record_size;
  uint32_t page_size;
  uint32_t block_size;
  uint64_t record_count;
};
static_assert(sizeof(Header) == 32);

constexpr const char* kNoParent = "it refers to a parent, and the image has none";

/// What is wrong with what a record says of its bytes, or null.
const char* check_storage(const PagemapRecord& r, const std::vector<uint64_t>& pages_sizes) {
  if (r.data_mask == 0) {
    bool clear = r.codec == Codec::kRaw && r.file == 0 && r.hash == Hash128{} && r.offset == 0 &&
                 r.length_less_one == 0 && r.ancestor == 0 && r.stored_check == 0;
    return clear ? nullptr : "bytes are given, but no page that has them";
  }
  uint64_t size = page_count(r.data_mask) * kPageSize;
  if (r.codec == Codec::kRaw) {
    if (r.stored_length() != size) return "the stored length is not that of its pages";
    if (r.offset % kPageSize != 0) return "raw pages are not aligned";
    if (r.stored_check != 0) return "the field that raw pages leave zero is not zero";
  } else if (r.codec == Codec::kZstd) {
    if (r.stored_length() >= size) return "the compressed length is out of range";
  } else {
    return "the codec is unknown";
  }
  return r.ancestor == 0 ? check_place(r, pages_sizes) : nullptr;
}

}  // namespace

std::string pages_file_name(size_t index) { return index == 0 ? "pages" : "pages." + std::to_string(index); }

uint32_t stored_check(ByteSpan stored) { return static_cast<uint32_t>(xxh3_128(stored).lo); }

std::string pagemap_header(uint64_t record_count) {
  Header header{{}, kVersion, sizeof(PagemapRecord), kPageSize, kBlockSize, record_count};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

Error PagemapParser::damaged(size_t record, const char* what) const {
  // What is missing below a stack is missing below its last record.
  return Error(Code::kCorrupt, "pagemap", fmt::format("record {}: {}", what == kNoParent ? record - 1 : record, what));
}

Result<void> PagemapParser::take_header(const std::byte* raw) {
  Header header;
  std::memcpy(&header, raw, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return fail(Code::kCorrupt, "pagemap", "is not a page map: wrong magic");
  if (header.version != kVersion) {
    return fail(Code::kUnsupported, "pagemap",
                fmt::format("has version {}, this ckpt knows {}", header.version, kVersion));
  }
  if (header.record_size != sizeof(PagemapRecord) || header.page_size != kPageSize || header.block_size != kBlockSize) {
    return fail(Code::kCorrupt, "pagemap", "the sizes in its header are not those of version 3");
  }
  // Record numbers are kept in 32 bits: 2^32 blocks are 256 TiB of address space, more than a process has.
  if (header.record_count > std::numeric_limits<uint32_t>::max())
    return fail(Code::kCorrupt, "pagemap", "promises too many records");
  expected_ = header.record_count;
  constexpr uint64_t kReserved = 1 << 20;  // what a header promises is not believed beyond 48 MiB
  records_.reserve(std::min(expected_, kReserved));
  header_seen_ = true;
  return {};
}

const char* PagemapParser::check_next(const PagemapRecord& r) const {
  if (records_.size() == expected_) return "follows the last one that the header promised";
  if (r.address % kBlockSize != 0) return "the address is not a multiple of the block size";
  if (r.all_pages() == 0) return "it says nothing of any page";
  if ((r.data_mask & r.zero_mask) != 0 || (r.parent_mask & (r.data_mask | r.zero_mask)) != 0)
    return "a page is given twice";
  if (r.ancestor != 0 && !has_parent_) return "it is a chunk of a parent, and the image has none";
  if (const char* what = check_storage(r, pages_sizes_)) return what;
  if (records_.empty()) return nullptr;
  const PagemapRecord& last = records_.back();
  if (r.address > last.address) return stack_ends() ? nullptr : kNoParent;
  if (r.address < last.address) return "it is out of order";
  if ((r.all_pages() & last.parent_mask) == 0) return "it is hidden by those before it";
  if ((r.parent_mask & ~last.parent_mask) != 0) return "it reaches below what hides it";
  return nullptr;
}

Result<void> PagemapParser::feed(ByteSpan bytes) {
  while (!bytes.empty()) {
    size_t unit = header_seen_ ? sizeof(PagemapRecord) : sizeof(Header);
    const std::byte* at = bytes.data();
    if (partial_.empty() && bytes.size() >= unit) {
      bytes = bytes.subspan(unit);
    } else {
      size_t n = std::min(unit - partial_.size(), bytes.size());
      partial_.insert(partial_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
      bytes = bytes.subspan(n);
      if (partial_.size() < unit) return {};
      at = partial_.data();
    }
    if (header_seen_) {
      PagemapRecord record;
      std::memcpy(static_cast<void*>(&record), at, sizeof record);
      if (const char* wrong = check_next(record)) return damaged(records_.size(), wrong);
      records_.push_back(record);
    } else {
      CKPT_TRY(take_header(at));
    }
    partial_.clear();
  }
  return {};
}

Result<std::vector<PagemapRecord>> PagemapParser::finish() {
  if (!header_seen_) return fail(Code::kCorrupt, "pagemap", "truncated: its header is cut");
  if (!partial_.empty() || records_.size() != expected_) {
    return fail(Code::kCorrupt, "pagemap", fmt::format("truncated: {} records of {}", records_.size(), expected_));
  }
  if (!stack_ends()) return damaged(records_.size(), kNoParent);
  return std::move(records_);
}

}  // namespace ckpt::store
