#include "formats/zip/writer.h"

#include <algorithm>
#include <cstring>

#include "formats/zip/records.h"
#include "lib/base/checked.h"

namespace ckpt::zip {

namespace {

// APPNOTE.TXT 6.3.10, section 4.5.3 (Zip64 field).
constexpr uint64_t kLocalCrc = 14, kCentralCrc = 16;
constexpr uint32_t kSaturated32 = 0xffffffff;
constexpr uint16_t kSaturated16 = 0xffff;
constexpr uint16_t kZip64Field = 1, kPaddingField = 0x4246;  // "FB"
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kVersionPlain = 20, kVersion64 = 45;
constexpr uint16_t kFirstDay = 0x21;  // 1980-01-01: a file of the same content is the same file

template <class T>
void put(std::string& out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof raw);
}

bool needs64(uint64_t value) { return value >= kSaturated32; }
uint32_t low32(uint64_t value) { return needs64(value) ? kSaturated32 : static_cast<uint32_t>(value); }

}  // namespace

void Layout::add(std::string name, uint64_t size, uint32_t alignment) {
  uint64_t extra = needs64(size) ? 20 : 0;
  uint64_t data = align_up<uint64_t>(end_ + kLocalSize + name.size() + extra + 4, alignment);
  Record& record = records_.emplace_back(Record{std::move(name), size, end_, data, directory_end_});
  end_ = data + size;
  const std::string field = entry_field(record);
  directory_end_ += kCentralSize + record.name.size() + (field.empty() ? 0 : field.size() + 4);
}

/// The content of the Zip64 field of the record's directory entry; empty: it needs none.
std::string Layout::entry_field(const Record& r) {
  std::string field;
  if (needs64(r.size)) {
    put<uint64_t>(field, r.size);
    put<uint64_t>(field, r.size);
  }
  if (needs64(r.header)) put<uint64_t>(field, r.header);
  return field;
}

std::array<uint64_t, 2> Layout::crc_slots(size_t index) const {
  return {records_[index].header + kLocalCrc, end_ + records_[index].entry + kCentralCrc};
}

std::string Layout::header(size_t index, uint32_t crc) const {
  const Record& r = records_[index];
  const bool big = needs64(r.size);
  std::string out;
  put<uint32_t>(out, kLocalSignature);
  put<uint16_t>(out, big ? kVersion64 : kVersionPlain);
  put<uint16_t>(out, kUtf8Names);
  put<uint16_t>(out, 0);  // stored
  put<uint16_t>(out, 0);
  put<uint16_t>(out, kFirstDay);
  put<uint32_t>(out, crc);
  put<uint32_t>(out, low32(r.size));
  put<uint32_t>(out, low32(r.size));
  put<uint16_t>(out, static_cast<uint16_t>(r.name.size()));
  put<uint16_t>(out, static_cast<uint16_t>(r.data - r.header - kLocalSize - r.name.size()));
  out += r.name;
  if (big) {
    put<uint16_t>(out, kZip64Field);
    put<uint16_t>(out, 16);
    put<uint64_t>(out, r.size);
    put<uint64_t>(out, r.size);
  }
  const size_t padding = r.data - r.header - out.size() - 4;
  put<uint16_t>(out, kPaddingField);
  put<uint16_t>(out, static_cast<uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string Layout::directory(std::span<const uint32_t> crcs) const {
  std::string out;
  out.reserve(directory_end_ + 100);
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& r = records_[i];
    const std::string field = entry_field(r);
    const uint16_t version = field.empty() ? kVersionPlain : kVersion64;
    put<uint32_t>(out, kCentralSignature);
    put<uint16_t>(out, version);
    put<uint16_t>(out, version);
    put<uint16_t>(out, kUtf8Names);
    put<uint16_t>(out, 0);
    put<uint16_t>(out, 0);
    put<uint16_t>(out, kFirstDay);
    put<uint32_t>(out, crcs[i]);
    put<uint32_t>(out, low32(r.size));
    put<uint32_t>(out, low32(r.size));
    put<uint16_t>(out, static_cast<uint16_t>(r.name.size()));
    put<uint16_t>(out, static_cast<uint16_t>(field.empty() ? 0 : field.size() + 4));
    put<uint16_t>(out, 0);  // comment
    put<uint16_t>(out, 0);  // disk
    put<uint16_t>(out, 0);  // internal attributes
    put<uint32_t>(out, 0);  // external attributes
    put<uint32_t>(out, low32(r.header));
    out += r.name;
    if (!field.empty()) {
      put<uint16_t>(out, kZip64Field);
      put<uint16_t>(out, static_cast<uint16_t>(field.size()));
      out += field;
    }
  }
  return out + ends();
}

/// What follows the directory's entries.
std::string Layout::ends() const {
  std::string out;
  const uint64_t length = directory_end_, n = records_.size();
  if (needs64(end_) || needs64(length) || n >= kSaturated16) {
    put<uint32_t>(out, kEnd64Signature);
    put<uint64_t>(out, 44);  // of what follows
    put<uint16_t>(out, kVersion64);
    put<uint16_t>(out, kVersion64);
    put<uint32_t>(out, 0);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, n);
    put<uint64_t>(out, n);
    put<uint64_t>(out, length);
    put<uint64_t>(out, end_);
    put<uint32_t>(out, kLocator64Signature);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, end_ + length);
    put<uint32_t>(out, 1);
  }
  const auto count = static_cast<uint16_t>(std::min<uint64_t>(n, kSaturated16));
  put<uint32_t>(out, kEndSignature);
  put<uint16_t>(out, 0);
  put<uint16_t>(out, 0);
  put<uint16_t>(out, count);
  put<uint16_t>(out, count);
  put<uint32_t>(out, low32(length));
  put<uint32_t>(out, low32(end_));
  put<uint16_t>(out, 0);
  return out;
}

uint64_t Layout::size() const { return end_ + directory_end_ + ends().size(); }

}  // namespace ckpt::zip
