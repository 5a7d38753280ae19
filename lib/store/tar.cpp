#include "lib/store/tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "lib/base/text.h"

namespace ckpt::store {

namespace {

using TarHeader = std::array<char, kTarBlock>;

struct TarField {
  size_t at, size;
};
constexpr TarField kTarName{0, 100}, kTarMode{100, 8}, kTarUid{108, 8}, kTarGid{116, 8}, kTarSize{124, 12};
constexpr TarField kTarTime{136, 12};
constexpr TarField kTarChecksum{148, 8}, kTarMagic{257, 6}, kTarVersion{263, 2}, kTarPrefix{345, 155};
constexpr size_t kTarType = 156;
constexpr uint64_t kMostOctal = (uint64_t{1} << 33) - 1;
constexpr uint64_t kMaxPax = 64 << 10;
constexpr uint64_t kMaxPaddingBehind = 1 << 20;  ///< tar writes whole records, of 10 KiB as a rule

void set_field(TarHeader& block, TarField field, std::string_view text) {
  std::memcpy(block.data() + field.at, text.data(), std::min(text.size(), field.size));
}

std::string_view field(ByteSpan header, TarField where) {
  const std::string_view text = as_text(header.subspan(where.at, where.size));
  return text.substr(0, text.find('\0'));
}

unsigned checksum(ByteSpan header) {
  unsigned sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool own = i >= kTarChecksum.at && i < kTarChecksum.at + kTarChecksum.size;
    sum += own ? unsigned{' '} : static_cast<unsigned>(header[i]);
  }
  return sum;
}

/// Octal digits, with spaces around them; or, as GNU's tar writes large ones, a number in base 256.
std::optional<uint64_t> parse_number(ByteSpan raw) {
  if (static_cast<unsigned>(raw[0]) == 0x80) {
    uint64_t out = 0;
    for (const std::byte byte : raw.subspan(1)) {
      if (out >> 55 != 0) return std::nullopt;
      out = out << 8 | static_cast<uint64_t>(byte);
    }
    return out;
  }
  std::string_view text = as_text(raw);
  text = text.substr(0, text.find('\0'));
  const size_t first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, last - first + 1);
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 8);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(out) : std::nullopt;
}

size_t padding_of(uint64_t size) { return (kTarBlock - size % kTarBlock) % kTarBlock; }

TarHeader make_header(const std::string& path, uint64_t size, char type) {
  TarHeader out{};
  set_field(out, kTarName, path);
  set_field(out, kTarMode, "0000600"), set_field(out, kTarUid, "0000000"), set_field(out, kTarGid, "0000000");
  set_field(out, kTarSize, fmt::format("{:011o}", size));
  set_field(out, kTarTime, "00000000000");
  out[kTarType] = type;
  set_field(out, kTarMagic, "ustar"), set_field(out, kTarVersion, "00");
  set_field(out, kTarChecksum, fmt::format("{:06o}", checksum(as_bytes({out.data(), out.size()}))));
  out[kTarChecksum.at + 7] = ' ';
  return out;
}

/// "LENGTH key=value\n", where LENGTH counts itself.
std::string pax_record(std::string_view key, std::string_view value) {
  const size_t rest = key.size() + value.size() + 3;
  size_t length = rest + 1;
  while (rest + std::to_string(length).size() != length) length = rest + std::to_string(length).size();
  return fmt::format("{} {}={}\n", length, key, value);
}

const char* what_is(char type) {
  switch (type) {
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
    case '4':
      return "a device";
    case '6':
      return "a pipe";
    default:
      return nullptr;
  }
}

}  // namespace

Result<void> TarWriter::put(ByteSpan bytes) { return sink_(bytes); }

Result<void> TarWriter::put_pax(const std::string& path, uint64_t size) {
  std::string records;
  if (path.size() > kTarName.size) records += pax_record("path", path);
  if (size > kMostOctal) records += pax_record("size", std::to_string(size));
  const TarHeader header = make_header("pax", records.size(), 'x');
  CKPT_TRY(put(as_bytes({header.data(), header.size()})));
  records.resize(records.size() + padding_of(records.size()));
  return put(as_bytes(records));
}

Result<void> TarWriter::begin(const std::string& path, uint64_t size) {
  if (path.size() > kTarName.size || size > kMostOctal) CKPT_TRY(put_pax(path, size));
  const TarHeader header = make_header(path.substr(0, kTarName.size), size > kMostOctal ? 0 : size, '0');
  left_ = size, padding_ = padding_of(size);
  return put(as_bytes({header.data(), header.size()}));
}

Result<void> TarWriter::write(ByteSpan content) {
  CKPT_ASSERT(content.size() <= left_);
  left_ -= content.size();
  return put(content);
}

Result<void> TarWriter::end() {
  CKPT_ASSERT(left_ == 0);
  return put(as_bytes(std::string(padding_, '\0')));
}

Result<void> TarWriter::finish() { return put(as_bytes(std::string(2 * kTarBlock, '\0'))); }

Result<void> TarReader::fill(MutableByteSpan out) {
  while (!out.empty()) {
    CKPT_TRY_ASSIGN(const size_t n, source_(out));
    if (n == 0) return fail(Code::kCorrupt, subject_, "is cut short: the archive has no end");
    out = out.subspan(n);
  }
  return {};
}

Result<void> TarReader::read(MutableByteSpan out) {
  if (out.size() > left_) return fail(Code::kBug, subject_, "more was read of a file than it has");
  left_ -= out.size();
  return fill(out);
}

Result<void> TarReader::skip_padding() {
  std::array<std::byte, kTarBlock> bytes;
  CKPT_TRY(fill(MutableByteSpan(bytes).first(padding_)));
  padding_ = 0;
  return {};
}

Result<void> TarReader::check_header(ByteSpan header) const {
  const auto told = parse_number(header.subspan(kTarChecksum.at, kTarChecksum.size));
  if (told && *told == checksum(header)) return {};
  if (!first_) return fail(Code::kCorrupt, subject_, "has a header that does not match its checksum");
  const std::string_view start = as_text(header.first(4));
  const bool packed = start.starts_with("\x1f\x8b") || start == "\x28\xb5\x2f\xfd" || start.starts_with("BZh") ||
                      start == "\xfd" "7zX";
  if (packed)
    return Error(Code::kUnsupported, subject_, "is compressed")
        .with_hint("unpack it on the way: zcat, zstdcat, ... FILE | ckpt import -");
  return fail(Code::kUnsupported, subject_, "is no archive of tar");
}

Result<TarEntry> TarReader::parse_header(ByteSpan header) const {
  TarEntry out;
  const auto size = parse_number(header.subspan(kTarSize.at, kTarSize.size));
  if (!size || *size > INT64_MAX) return fail(Code::kCorrupt, subject_, "has a size that cannot be");
  out.size = *size, out.path = field(header, kTarName);
  // GNU's tar has other things where POSIX has the prefix.
  const std::string_view magic = as_text(header.subspan(kTarMagic.at, kTarMagic.size));
  const bool posix = magic == std::string_view("ustar\0", kTarMagic.size);
  if (const std::string_view prefix = field(header, kTarPrefix); posix && !prefix.empty())
    out.path = std::string(prefix) + "/" + out.path;
  if (pax_path_) out.path = *pax_path_;
  if (pax_size_) out.size = *pax_size_;
  return out;
}

Result<void> TarReader::take_pax(std::string_view key, std::string_view value) {
  if (key == "path") pax_path_ = value;
  if (key == "size") {
    uint64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (error != std::errc() || end != value.data() + value.size() || size > INT64_MAX)
      return fail(Code::kCorrupt, subject_, "has a size that cannot be");
    pax_size_ = size;
  }
  if (key.starts_with("GNU.sparse."))
    return fail(Code::kUnsupported, subject_, "has sparse files in a way of GNU's tar that ckpt does not read");
  return {};
}

Result<void> TarReader::read_pax(uint64_t size) {
  if (size > kMaxPax) return fail(Code::kCorrupt, subject_, "has an extended header that is too long");
  std::string text(size, '\0');
  CKPT_TRY(fill(std::as_writable_bytes(std::span(text))));
  for (std::string_view rest = text; !rest.empty();) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<size_t>(end - rest.data());
    if (error != std::errc() || length > rest.size() || length < digits + 3 || rest[digits] != ' ' ||
        rest[length - 1] != '\n')
      return fail(Code::kCorrupt, subject_, "has an extended header that cannot be");
    const std::string_view record = rest.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos)
      return fail(Code::kCorrupt, subject_, "has an extended header that cannot be");
    CKPT_TRY(take_pax(record.substr(0, equals), record.substr(equals + 1)));
    rest = rest.substr(length);
  }
  padding_ = padding_of(size);
  return skip_padding();
}

/// Behind the first of the two blocks.
Result<void> TarReader::check_end() {
  std::vector<std::byte> block(64 << 10);
  CKPT_TRY(fill(MutableByteSpan(block).first(kTarBlock)));
  size_t n = kTarBlock;
  for (uint64_t sum = 0; n != 0; sum += n) {
    const bool zeros = std::all_of(block.begin(), block.begin() + static_cast<ptrdiff_t>(n),
                                   [](std::byte byte) { return byte == std::byte{0}; });
    if (!zeros || sum > kMaxPaddingBehind) return fail(Code::kCorrupt, subject_, "has more behind its end");
    CKPT_TRY_ASSIGN(n, source_(block));
  }
  return {};
}

Result<std::optional<TarEntry>> TarReader::next() {
  if (left_ != 0) return fail(Code::kBug, subject_, "a file was not read to its end");
  CKPT_TRY(skip_padding());
  for (;;) {
    std::array<std::byte, kTarBlock> header;
    CKPT_TRY(fill(header));
    const bool end = std::all_of(header.begin(), header.end(), [](std::byte byte) { return byte == std::byte{0}; });
    if (end) {
      CKPT_TRY(check_end());
      return std::optional<TarEntry>();
    }
    CKPT_TRY(check_header(header));
    first_ = false;
    const char type = static_cast<char>(header[kTarType]);
    CKPT_TRY_ASSIGN(TarEntry entry, parse_header(header));
    if (type == 'x') {
      if (pax_path_ || pax_size_) return fail(Code::kCorrupt, subject_, "has an extended header of another one");
      CKPT_TRY(read_pax(entry.size));
      continue;
    }
    pax_path_.reset(), pax_size_.reset();
    if (const char* what = what_is(type))
      return fail(Code::kCorrupt, subject_, "has " + std::string(what) + " in it, which no image has: " + entry.path);
    if (type != '0' && type != '\0' && type != '5')
      return fail(Code::kUnsupported, subject_,
                  fmt::format("has an entry of a kind that ckpt does not read (0x{:02x})", type & 0xff));
    entry.folder = type == '5';
    if (entry.folder && entry.size != 0) return fail(Code::kCorrupt, subject_, "has a folder with content");
    left_ = entry.size, padding_ = padding_of(entry.size);
    return std::optional(std::move(entry));
  }
}

}  // namespace ckpt::store
