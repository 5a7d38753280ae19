#include "lib/base/hex.h"

#include <sys/random.h>

#include <vector>

namespace ckpt {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

}  // namespace

void append_hex(std::string& out, ByteSpan bytes) {
  for (const std::byte byte : bytes) {
    out += kHex[static_cast<unsigned>(byte) >> 4];
    out += kHex[static_cast<unsigned>(byte) & 15];
  }
}

std::string bytes_to_hex(ByteSpan bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  append_hex(out, bytes);
  return out;
}

bool bytes_of_hex(std::string_view text, MutableByteSpan out) {
  if (text.size() % 2 != 0 || text.size() / 2 != out.size()) return false;
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of(kHex) == std::string_view::npos;
}

Result<std::string> random_id() { return random_hex(kIdDigits / 2); }

Result<std::string> random_hex(size_t bytes) {
  std::vector<std::byte> raw(bytes);
  if (::getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size()))
    return sys_error("", "cannot get random bytes");
  return bytes_to_hex(raw);
}

}  // namespace ckpt
