#include "lib/base/json_text.h"

#include <cstdio>

namespace ckpt {

namespace {

void append_escape(std::string& out, unsigned code) {
  char text[8];
  std::snprintf(text, sizeof text, "\\u%04x", code & 0xffff);
  out += text;
}

/// ASCII that a string holds as it is.
bool is_plain(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

bool is_surrogate(unsigned code) { return code >= 0xd800 && code < 0xe000; }

/// Bytes of the UTF-8 sequence at `at`, 0 when it is none. Surrogates count as sequences: the caller escapes them.
size_t sequence(std::string_view text, size_t at, unsigned& code) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  const size_t length = first >= 0xf0 && first < 0xf5   ? 4
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xc2 && first < 0xe0 ? 2
                                                        : 0;
  if (length == 0 || at + length > text.size()) return 0;
  code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (byte(at + i) & 0x3f);
  }
  bool overlong = (length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10ffff));
  return overlong ? 0 : length;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    while (i < text.size() && is_plain(text[i])) ++i;
    out += text.substr(begin, i - begin);
    if (i == text.size()) break;
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      if (c == '"' || c == '\\') (out += '\\') += text[i];
      else if (c == '\n') out += "\\n";
      else if (c == '\t') out += "\\t";
      else append_escape(out, c);
      ++i;
      continue;
    }
    unsigned code = 0;
    size_t length = sequence(text, i, code);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      ++i;
      continue;
    }
    if (is_surrogate(code)) out += '\\';  // strict parsers refuse a lone surrogate, so its escape is shown as text
    if (code < 0xa0 || is_surrogate(code)) append_escape(out, code);
    else out += text.substr(i, length);
    i += length;
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

size_t utf8_length(std::string_view text) {
  if (text.empty() || static_cast<unsigned char>(text[0]) < 0x80) return text.empty() ? 0 : 1;
  unsigned code = 0;
  const size_t length = sequence(text, 0, code);
  return is_surrogate(code) ? 0 : length;
}

bool try_append_ascii_json_string(std::string& out, std::string_view text) {
  const size_t mark = out.size();
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    unsigned code = c;
    const size_t length = c < 0x80 ? 1 : sequence(text, i, code);
    if (length == 0 || is_surrogate(code)) {
      out.resize(mark);
      return false;
    }
    if (c == '"' || c == '\\') out += '\\';
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else if (code < 0x10000) {
      append_escape(out, code);
    } else {
      append_escape(out, 0xd800 + ((code - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
    }
    i += length;
  }
  out += '"';
  return true;
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace ckpt
