#include "formats/zip/zip.h"

#include <algorithm>
#include <unordered_map>

#include "formats/zip/records.h"
#include "lib/base/checked.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"

namespace ckpt::zip {

namespace {

constexpr uint16_t kDeflate = 8;
constexpr uint64_t kMaxComment = 65535;
constexpr uint64_t kMaxDirectory = 256 << 20;
constexpr uint64_t kFirstTail = 4096;  ///< holds the directory's end for all but odd archives

Unexpected damaged(const ByteSource& source, std::string why) {
  return fail(Code::kCorrupt, source.subject(), "damaged zip: " + std::move(why));
}
Unexpected unsupported(const ByteSource& source, std::string why) {
  return fail(Code::kUnsupported, source.subject(), std::move(why));
}

struct Directory {
  uint64_t entries = 0, offset = 0, size = 0;
  uint64_t end = 0;  ///< nothing of the archive's content lies behind it
  uint64_t finish = 0;  ///< behind the end record and its comment
};

std::string method_name(uint16_t method) {
  switch (method) {
    case 8: return "deflate";
    case 9: return "deflate64";
    case 12: return "bzip2";
    case 14: return "lzma";
    case 93: return "zstd";
    case 95: return "xz";
    case 99: return "AES encryption";
    default: return "method " + std::to_string(method);
  }
}

/// The end record lies within the last 65,557 bytes; what follows it may be longer than its comment (torch takes such
/// files).
Result<uint64_t> find_end(const ByteSource& source, std::vector<std::byte>& tail) {
  for (uint64_t want : {kFirstTail, kMaxComment + kEndSize}) {
    uint64_t size = std::min(want, source.size());
    if (size < kEndSize) break;
    tail.resize(size);
    CKPT_TRY(source.read(source.size() - size, tail));
    for (size_t i = size - kEndSize + 1; i-- > 0;) {
      if (at<uint32_t>(tail, i) != kEndSignature) continue;
      if (i + kEndSize + at<uint16_t>(tail, i + 20) > size) continue;
      return source.size() - size + i;
    }
    if (size == source.size()) break;
  }
  return damaged(source, "it has no end record");
}

Result<Directory> read_end(const ByteSource& source) {
  std::vector<std::byte> tail;
  CKPT_TRY_ASSIGN(uint64_t end, find_end(source, tail));
  ByteSpan record = ByteSpan(tail).subspan(end - (source.size() - tail.size()), kEndSize);
  Directory out;
  uint16_t disk = at<uint16_t>(record, 4), directory_disk = at<uint16_t>(record, 6);
  uint16_t here = at<uint16_t>(record, 8), entries = at<uint16_t>(record, 10);
  uint32_t size = at<uint32_t>(record, 12), offset = at<uint32_t>(record, 16);
  out.entries = entries, out.size = size, out.offset = offset, out.end = end;
  out.finish = end + kEndSize + at<uint16_t>(record, 20);
  const bool saturated = entries == UINT16_MAX || size == UINT32_MAX || offset == UINT32_MAX || disk == UINT16_MAX;
  std::vector<std::byte> locator(kLocator64Size), end64(kEnd64Size);
  if (saturated && end >= kLocator64Size) {
    CKPT_TRY(source.read(end - kLocator64Size, locator));
    if (at<uint32_t>(locator, 0) == kLocator64Signature) {
      uint64_t where = at<uint64_t>(locator, 8);
      if (at<uint32_t>(locator, 16) > 1) return unsupported(source, "a zip archive of several disks");
      if (where > end - kLocator64Size || end - kLocator64Size - where < kEnd64Size)
        return damaged(source, "the Zip64 end record lies outside");
      CKPT_TRY(source.read(where, end64));
      if (at<uint32_t>(end64, 0) != kEnd64Signature) return damaged(source, "the Zip64 end record is missing");
      if (at<uint32_t>(end64, 16) != 0 || at<uint32_t>(end64, 20) != 0 ||
          at<uint64_t>(end64, 24) != at<uint64_t>(end64, 32)) {
        return unsupported(source, "a zip archive of several disks");
      }
      out.entries = at<uint64_t>(end64, 32), out.size = at<uint64_t>(end64, 40), out.offset = at<uint64_t>(end64, 48);
      out.end = where;
      disk = directory_disk = 0, here = entries;
    }
  }
  if (disk != 0 || directory_disk != 0 || here != entries) return unsupported(source, "a zip archive of several disks");
  auto directory_end = checked_add(out.offset, out.size);
  if (!directory_end || *directory_end > out.end) return damaged(source, "the directory lies outside");
  if (out.size > kMaxDirectory) return damaged(source, "the directory is larger than the limit");
  if (out.entries > out.size / kCentralSize) return damaged(source, "the directory is too small for its entries");
  return out;
}

/// The 64-bit values of extra field 1, in order, for each field that is saturated.
bool take_zip64(ByteSpan extra, uint64_t& size, uint64_t& stored, uint64_t& header) {
  ByteReader reader(extra);
  while (reader.remaining() >= 4) {
    uint16_t id = *reader.read<uint16_t>(), length = *reader.read<uint16_t>();
    auto body = reader.take(length);
    if (!body) return false;
    if (id != 1) continue;
    ByteReader values(*body);
    for (uint64_t* field : {&size, &stored, &header}) {
      if (*field != UINT32_MAX) continue;
      auto value = values.read<uint64_t>();
      if (!value) return false;
      *field = *value;
    }
    return true;
  }
  return size != UINT32_MAX && stored != UINT32_MAX && header != UINT32_MAX;
}

Result<Record> parse_entry(const ByteSource& source, ByteReader& reader, const Directory& directory, bool deflate) {
  auto fixed = reader.take(kCentralSize);
  if (!fixed || at<uint32_t>(*fixed, 0) != kCentralSignature) return damaged(source, "a directory entry is missing");
  auto name = reader.take(at<uint16_t>(*fixed, 28));
  auto extra = reader.take(at<uint16_t>(*fixed, 30));
  auto comment = reader.take(at<uint16_t>(*fixed, 32));
  if (!name || !extra || !comment) return damaged(source, "a directory entry is cut off");
  Record out;
  out.name = std::string(as_text(*name));
  const uint16_t flags = at<uint16_t>(*fixed, 8), method = at<uint16_t>(*fixed, 10);
  // Bits 0, 6 and 13: encryption of the data, strong encryption, an encrypted directory.
  if ((flags & 0x2041) != 0) return unsupported(source, "record " + out.name + " is encrypted");
  out.deflated = method == kDeflate && deflate;
  // The only thing that torch compresses.
  if (method != 0 && !out.deflated && out.name.find("/code/__torch__") != std::string::npos)
    return unsupported(source, "is a TorchScript archive");
  if (method != 0 && !out.deflated)
    return unsupported(source,
                       "record " + out.name + " is compressed (" + method_name(method) + "), checkpoints are not");
  if (at<uint16_t>(*fixed, 34) != 0 && at<uint16_t>(*fixed, 34) != UINT16_MAX)
    return unsupported(source, "a zip archive of several disks");
  out.crc = at<uint32_t>(*fixed, 16);
  out.stored = at<uint32_t>(*fixed, 20);
  out.size = at<uint32_t>(*fixed, 24);
  out.header = at<uint32_t>(*fixed, 42);
  if (!take_zip64(*extra, out.size, out.stored, out.header))
    return damaged(source, "record " + out.name + " has no 64-bit sizes");
  if (out.stored != out.size && !out.deflated)
    return damaged(source, "record " + out.name + " has two different sizes");
  if (out.header > directory.offset || directory.offset - out.header < kLocalSize) {
    return damaged(source, "record " + out.name + " lies outside");
  }
  return out;
}

Result<void> check_local_header(const ByteSource& source, const Directory& directory, Record& record) {
  std::vector<std::byte> header(std::min(kLocalSize + record.name.size(), directory.offset - record.header));
  CKPT_TRY(source.read(record.header, header));
  if (at<uint32_t>(header, 0) != kLocalSignature)
    return damaged(source, "record " + record.name + " has no local header");
  const uint16_t flags = at<uint16_t>(header, 6), method = at<uint16_t>(header, 8);
  const uint64_t name = at<uint16_t>(header, 26), extra = at<uint16_t>(header, 28);
  if (name != record.name.size() || header.size() != kLocalSize + name ||
      as_text(ByteSpan(header).subspan(kLocalSize)) != record.name) {
    return damaged(source, "record " + record.name + " has another name in its local header");
  }
  if ((flags & 0x2041) != 0 || method != (record.deflated ? kDeflate : 0))
    return damaged(source, "record " + record.name + " is encrypted or compressed otherwise by its local header");
  record.offset = record.header + kLocalSize + name + extra;
  if (record.offset > directory.offset || record.stored > directory.offset - record.offset) {
    return damaged(source, "record " + record.name + " lies outside");
  }
  return {};
}

Result<void> refuse_overlaps_and_twins(const ByteSource& source, const std::vector<Record>& records) {
  std::vector<const Record*> order;
  std::unordered_map<std::string_view, int> names;
  for (const Record& record : records) {
    order.push_back(&record);
    if (++names[record.name] > 1) return damaged(source, "two records are called " + record.name);
  }
  std::sort(order.begin(), order.end(), [](const Record* a, const Record* b) { return a->header < b->header; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->header < order[i - 1]->offset + order[i - 1]->stored) {
      return damaged(source, "the records " + order[i - 1]->name + " and " + order[i]->name + " overlap");
    }
  }
  return {};
}

}  // namespace

Result<void> ByteSource::read(uint64_t offset, MutableByteSpan out) const {
  if (offset > size_ || out.size() > size_ - offset)
    return fail(Code::kCorrupt, subject_, "truncated: it ends at byte " + std::to_string(size_));
  if (out.empty()) return {};
  if (fd_ >= 0) return io::pread_exact(fd_, out, offset_ + offset, subject_);
  std::memcpy(out.data(), memory_.data() + offset, out.size());
  return {};
}

const Record* Archive::find(std::string_view name) const {
  for (const Record& record : records) {
    std::string_view full = record.name;
    if (full.size() == top.size() + 1 + name.size() && full.substr(0, top.size()) == top && full[top.size()] == '/' &&
        full.substr(top.size() + 1) == name) {
      return &record;
    }
  }
  return nullptr;
}

Result<Archive> read_archive(const ByteSource& source, bool deflate) {
  CKPT_TRY_ASSIGN(Directory directory, read_end(source));
  std::vector<std::byte> bytes(directory.size);
  CKPT_TRY(source.read(directory.offset, bytes));
  ByteReader reader(bytes);
  Archive out;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    CKPT_TRY_ASSIGN(Record record, parse_entry(source, reader, directory, deflate));
    CKPT_TRY(check_local_header(source, directory, record));
    out.records.push_back(std::move(record));
  }
  if (reader.remaining() != 0) return damaged(source, "the directory holds more than its entries");
  CKPT_TRY(refuse_overlaps_and_twins(source, out.records));
  out.directory = directory.offset, out.directory_end = directory.offset + directory.size;
  out.tail = directory.end, out.end = directory.finish;
  if (!out.records.empty()) out.top = out.records[0].name.substr(0, out.records[0].name.find('/'));
  return out;
}

Result<std::vector<std::byte>> read_record(const ByteSource& source, const Record& record, uint64_t limit) {
  if (record.size > limit)
    return fail(Code::kCorrupt, source.subject(), "record " + record.name + " is larger than the limit");
  std::vector<std::byte> out(record.size);
  CKPT_TRY(source.read(record.offset, out));
  return out;
}

Result<uint32_t> record_crc(const ByteSource& source, const Record& record,
                            const std::function<Result<void>(uint64_t)>& each_block) {
  std::vector<std::byte> block(std::min<uint64_t>(record.size, 1 << 20));
  uint32_t crc = 0;
  for (uint64_t done = 0; done < record.size;) {
    MutableByteSpan part = MutableByteSpan(block).first(std::min<uint64_t>(block.size(), record.size - done));
    CKPT_TRY(source.read(record.offset + done, part));
    crc = crc32(crc, part);
    done += part.size();
    if (each_block) CKPT_TRY(each_block(part.size()));
  }
  return crc;
}

}  // namespace ckpt::zip
