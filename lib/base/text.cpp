#include "lib/base/text.h"

#include <cstdio>

namespace ckpt {

namespace {

/// Length of the valid UTF-8 sequence at `s` (1 to 4) that is no control character, or 0.
size_t printable_length(std::string_view s) {
  unsigned char c = static_cast<unsigned char>(s[0]);
  if (c < 0x20 || c == 0x7f) return 0;
  if (c < 0x80) return 1;
  size_t n = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 && c < 0xe0 ? 2 : 0;
  if (n == 0 || c >= 0xf5 || s.size() < n) return 0;
  uint32_t cp = c & (0xff >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    unsigned char b = static_cast<unsigned char>(s[i]);
    if ((b & 0xc0) != 0x80) return 0;
    cp = cp << 6 | (b & 0x3f);
  }
  static const uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  bool bad = cp < kLeast[n] || (cp >= 0xd800 && cp < 0xe000) || cp > 0x10ffff || cp < 0xa0;
  // Bidirectional overrides can make a name read as another one.
  bad = bad || (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0x200e || cp == 0x200f;
  return bad ? 0 : n;
}

/// One pattern element at p[i]: returns its length and whether it matches c.
size_t match_one(std::string_view p, size_t i, char c, bool& ok) {
  if (p[i] == '?') {
    ok = c != '.';
    return 1;
  }
  if (p[i] == '[') {
    size_t end = p.find(']', i + 2);
    if (end != std::string_view::npos) {
      std::string_view set = p.substr(i + 1, end - i - 1);
      bool negate = set[0] == '!' || set[0] == '^';
      if (negate) set.remove_prefix(1);
      bool in = false;
      for (size_t k = 0; k < set.size(); ++k) {
        if (k + 2 < set.size() && set[k + 1] == '-') {
          in = in || (c >= set[k] && c <= set[k + 2]);
          k += 2;
        } else {
          in = in || c == set[k];
        }
      }
      ok = in != negate;
      return end - i + 1;
    }
  }
  ok = p[i] == c;
  return 1;
}

}  // namespace

std::string escape_for_terminal(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (size_t n = printable_length(text.substr(i)); n > 0) {
      out.append(text.substr(i, n));
      i += n;
    } else {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(text[i]));
      out += hex;
      ++i;
    }
  }
  return out;
}

std::string unescape_octal(std::string_view text) {
  auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') << 6 | (text[i + 2] - '0') << 3 | (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string_view take_field(std::string_view& rest, char separator) {
  const size_t at = rest.find(separator);
  const std::string_view out = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + 1);
  return out;
}

std::string human_bytes(uint64_t bytes) {
  static const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value >= 100 ? "%.0f %s" : value >= 10 ? "%.1f %s" : "%.2f %s", value,
                kUnits[unit]);
  return text;
}

std::string human_us(uint64_t us) {
  char text[32];
  double v = static_cast<double>(us);
  if (us < 1000) std::snprintf(text, sizeof text, "%llu us", static_cast<unsigned long long>(us));
  else if (us < 1'000'000) std::snprintf(text, sizeof text, "%.3g ms", v / 1e3);
  else std::snprintf(text, sizeof text, us < 100'000'000 ? "%.2f s" : "%.0f s", v / 1e6);
  return text;
}

bool glob_match(std::string_view p, std::string_view key) {
  // Two levels of backtracking points: the last `*` (may not cross a dot) and the last `**` (may). Falling back only to
  // the latest of each is enough, as in the classic iterative matcher.
  constexpr size_t kNone = std::string_view::npos;
  size_t i = 0, k = 0, star_i = kNone, star_k = 0, deep_i = kNone, deep_k = 0;
  for (;;) {
    if (i < p.size() && p[i] == '*') {
      if (i + 1 < p.size() && p[i + 1] == '*') {
        i += 2;
        deep_i = i, deep_k = k, star_i = kNone;
      } else {
        i += 1;
        star_i = i, star_k = k;
      }
      continue;
    }
    if (k == key.size() && i == p.size()) return true;
    if (k < key.size() && i < p.size()) {
      bool ok = false;
      size_t n = match_one(p, i, key[k], ok);
      if (ok) {
        i += n;
        ++k;
        continue;
      }
    }
    if (star_i != kNone && star_k < key.size() && key[star_k] != '.') {
      i = star_i, k = ++star_k;
    } else if (deep_i != kNone && deep_k < key.size()) {
      i = deep_i, k = ++deep_k, star_i = kNone;
    } else {
      return false;
    }
  }
}

}  // namespace ckpt
