#include "formats/pickle/escapes.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace ckpt::pickle {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18 & 7));
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

std::string unescape(std::string_view text, bool unicode_only) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char kind = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const size_t digits = kind == 'u' ? 4 : kind == 'U' ? 8 : kind == 'x' && !unicode_only ? 2 : 0;
    const std::string_view rest = text.substr(std::min(text.size(), i + 2));
    uint32_t value = 0;
    if (digits != 0 && rest.size() >= digits &&
        std::from_chars(rest.data(), rest.data() + digits, value, 16).ptr == rest.data() + digits) {
      append_utf8(out, value);
      i += 1 + digits;
    } else if (!unicode_only && kind >= '0' && kind <= '7') {
      const char* begin = text.data() + i + 1;
      auto end = std::from_chars(begin, std::min(begin + 3, text.data() + text.size()), value, 8).ptr;
      append_utf8(out, value & 0xff);
      i += static_cast<size_t>(end - begin);
    } else if (!unicode_only && (kind == '\\' || kind == '\'' || kind == '"')) {
      out += kind;
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace ckpt::pickle
