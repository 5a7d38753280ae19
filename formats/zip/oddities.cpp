// What an archive holds besides what its directory says: found by laying the records side by side
// (formats.md 3.1, 3.8).
#include <algorithm>

#include "formats/zip/records.h"
#include "formats/zip/zip.h"

namespace ckpt::zip {

namespace {

constexpr uint16_t kHasDescriptor = 8;     ///< flag bit 3: sizes and CRC follow the data
constexpr uint64_t kEnd64AndLocator = kEnd64Size + kLocator64Size;
constexpr size_t kMaxOddities = 100;

class Finder {
 public:
  Finder(const ByteSource& source, const Archive& archive) : source_(source), archive_(archive) {}

  Result<std::vector<Oddity>> run() {
    std::vector<const Record*> order;
    for (const Record& record : archive_.records) order.push_back(&record);
    std::sort(order.begin(), order.end(), [](const Record* a, const Record* b) { return a->header < b->header; });
    gap(0, order.empty() ? archive_.directory : order[0]->header);
    for (size_t i = 0; i < order.size() && out_.size() < kMaxOddities; ++i) {
      CKPT_TRY(check(*order[i], i + 1 < order.size() ? order[i + 1]->header : archive_.directory));
    }
    CKPT_TRY(check_tail());
    return std::move(out_);
  }

 private:
  void note(uint64_t offset, std::string message) { out_.push_back({offset, std::move(message)}); }
  void gap(uint64_t begin, uint64_t end) {
    if (begin < end) note(begin, "no record has the " + std::to_string(end - begin) + " bytes from here");
  }

  Result<void> check(const Record& record, uint64_t next) {
    std::byte header[kLocalSize];
    CKPT_TRY(source_.read(record.header, header));
    const uint16_t flags = at<uint16_t>(header, 6);
    const uint32_t crc = at<uint32_t>(header, 14), stored = at<uint32_t>(header, 18), size = at<uint32_t>(header, 22);
    const uint64_t end = record.offset + record.stored;
    if ((flags & kHasDescriptor) != 0) return check_descriptor(record, end, next);
    const bool wide = stored == UINT32_MAX || size == UINT32_MAX;  // the Zip64 field has them
    if (!wide && (stored != record.stored || size != record.size)) {
      note(record.header, "record " + record.name + " has another size in its local header");
    }
    if (crc != record.crc) note(record.header, "record " + record.name + " has another CRC in its local header");
    gap(end, next);
    return {};
  }

  /// [signature] crc size size; sizes of 4 or 8 bytes. Empty records may have none.
  Result<void> check_descriptor(const Record& record, uint64_t end, uint64_t next) {
    std::byte raw[24];
    const uint64_t room = next - end;
    if (room == 0 && record.size == 0) return {};
    const auto have = MutableByteSpan(raw).first(std::min<uint64_t>(room, sizeof raw));
    CKPT_TRY(source_.read(end, have));
    for (const size_t start : {size_t{4}, size_t{0}}) {
      for (const size_t wide : {size_t{4}, size_t{8}}) {
        const size_t length = start + 4 + 2 * wide;
        if (have.size() < length || (start == 4 && at<uint32_t>(have, 0) != kDescriptorSignature)) continue;
        const uint64_t a = wide == 4 ? at<uint32_t>(have, start + 4) : at<uint64_t>(have, start + 4);
        const uint64_t b = wide == 4 ? at<uint32_t>(have, start + 8) : at<uint64_t>(have, start + 12);
        if (at<uint32_t>(have, start) != record.crc || a != record.stored || b != record.size) continue;
        gap(end + length, next);
        return {};
      }
    }
    note(end, "record " + record.name + " is not followed by a descriptor that says what the directory says");
    return {};
  }

  Result<void> check_tail() {
    // torch writes Zip64 end records that nothing needs: an end record of 56 bytes and its locator of 20.
    uint64_t from = archive_.directory_end;
    std::byte signature[4];
    if (archive_.tail - from == kEnd64AndLocator) {
      CKPT_TRY(source_.read(from, signature));
      if (at<uint32_t>(signature, 0) == kEnd64Signature) from = archive_.tail;
    }
    gap(from, archive_.tail);
    if (archive_.end < source_.size())
      note(archive_.end, std::to_string(source_.size() - archive_.end) + " bytes follow the archive");
    return {};
  }

  const ByteSource& source_;
  const Archive& archive_;
  std::vector<Oddity> out_;
};

}  // namespace

Result<std::vector<Oddity>> find_oddities(const ByteSource& source, const Archive& archive) {
  return Finder(source, archive).run();
}

}  // namespace ckpt::zip
