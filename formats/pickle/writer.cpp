#include "formats/pickle/writer.h"

#include <cstring>

namespace ckpt::pickle {

namespace {

template <class T>
void append_le(std::string& out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof raw);
}

}  // namespace

void Writer::integer(uint64_t value) {
  if (value < 0x100) {
    out_ += 'K';
    append_le(out_, static_cast<uint8_t>(value));
  } else if (value < 0x10000) {
    out_ += 'M';
    append_le(out_, static_cast<uint16_t>(value));
  } else if (value < 0x80000000) {
    out_ += 'J';
    append_le(out_, static_cast<uint32_t>(value));
  } else {  // LONG1: two's complement, as few bytes as keep the sign bit clear
    std::string digits;
    for (; value != 0; value >>= 8) digits += static_cast<char>(value & 0xff);
    if ((digits.back() & 0x80) != 0) digits += '\0';
    out_ += '\x8a';
    out_ += static_cast<char>(digits.size());
    out_ += digits;
  }
}

void Writer::signed_integer(int64_t value) {
  if (value >= 0) return integer(static_cast<uint64_t>(value));
  if (value >= INT32_MIN) {
    out_ += 'J';
    append_le(out_, static_cast<int32_t>(value));
  } else {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    long_integer({raw, sizeof raw});
  }
}

void Writer::long_integer(std::string_view digits) {
  out_ += '\x8a';
  out_ += static_cast<char>(digits.size());
  out_ += digits;
}

void Writer::real(double value) {
  uint64_t raw;
  std::memcpy(&raw, &value, sizeof raw);
  out_ += 'G';
  append_le(out_, __builtin_bswap64(raw));
}

void Writer::text(std::string_view utf8) {
  out_ += 'X';
  append_le(out_, static_cast<uint32_t>(utf8.size()));
  out_ += utf8;
}

void Writer::binary_text(std::string_view bytes) {
  if (bytes.size() < 0x100) {
    out_ += 'U';
    append_le(out_, static_cast<uint8_t>(bytes.size()));
  } else {
    out_ += 'T';
    append_le(out_, static_cast<uint32_t>(bytes.size()));
  }
  out_ += bytes;
}

void Writer::global(const std::string& module, const std::string& name) {
  auto known = globals_.find({module, name});
  if (known != globals_.end()) return get(known->second);
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
  globals_[{module, name}] = put();
}

void Writer::integers(const std::vector<uint64_t>& values) {
  if (values.empty()) return empty_tuple();
  mark();
  for (uint64_t value : values) integer(value);
  tuple();
}

uint32_t Writer::put() {
  if (memo_ < 0x100) {
    out_ += 'q';
    append_le(out_, static_cast<uint8_t>(memo_));
  } else {
    out_ += 'r';
    append_le(out_, memo_);
  }
  return memo_++;
}

void Writer::get(uint32_t memo) {
  if (memo < 0x100) {
    out_ += 'h';
    append_le(out_, static_cast<uint8_t>(memo));
  } else {
    out_ += 'j';
    append_le(out_, memo);
  }
}

}  // namespace ckpt::pickle
