#include "lib/base/json_reader.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "lib/base/json_text.h"

namespace ckpt {

namespace {

void append_utf8(std::string& out, unsigned code) {
  auto tail = [&](unsigned shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

/// What a string may hold as it is: ASCII but controls, quotes and backslashes.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> out{};
  for (int c = 0x20; c < 0x80; ++c) out[static_cast<size_t>(c)] = c != '"' && c != '\\';
  return out;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void JsonReader::fail(std::string what) {
  if (fault_.empty()) fault_ = fmt::format("{} at byte {}", what, at_);
  at_ = text_.size();
}

void JsonReader::fail_syntax(const char* expected) { fail(fmt::format("is not JSON: {} is missing", expected)); }

bool JsonReader::count() {
  if (++values_ > limits_.values) fail(fmt::format("holds more than {} values,", limits_.values));
  return !failed();
}

/// The first character that is no white space, 0 at the end.
char JsonReader::skip_space() {
  constexpr uint64_t kIndent = 0x2020202020202020;
  for (uint64_t eight = 0; text_.size() - at_ > 8; at_ += 8) {
    std::memcpy(&eight, text_.data() + at_, 8);
    if (eight != kIndent) break;
  }
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
  }
  return 0;
}

char JsonReader::peek() {
  if (failed()) return 0;
  const char c = skip_space();
  switch (c) {
    case '{': case '[': case '"': case 't': case 'f': return c;
    case 'n': return '0';
    default:
      if (c == '-' || is_digit(c)) return 'n';
      fail_syntax("a value");
      return 0;
  }
}

void JsonReader::enter() {
  if (failed()) return;
  if (++depth_ > limits_.depth) fail(fmt::format("is nested deeper than {},", limits_.depth));
  else if (count()) ++at_;
}

bool JsonReader::next(char bracket, bool first) {
  if (failed()) return false;
  const char c = skip_space();
  if (c == bracket + 2) {  // '}' of '{', ']' of '[' in ASCII
    ++at_;
    --depth_;
    return false;
  }
  if (first) return true;
  if (c != ',') {
    fail_syntax("a comma");
    return false;
  }
  ++at_;
  return true;
}

bool JsonReader::try_key(std::string_view name) {
  if (failed()) return false;
  skip_space();
  const std::string_view rest = text_.substr(at_);
  if (rest.size() < name.size() + 2 || rest[0] != '"' || rest[name.size() + 1] != '"' ||
      rest.substr(1, name.size()) != name) {
    return false;
  }
  at_ += name.size() + 2;
  if (skip_space() != ':') fail_syntax("a colon");
  else ++at_;
  return true;
}

std::string_view JsonReader::key() {
  if (failed()) return {};
  if (skip_space() != '"') {
    fail_syntax("a name");
    return {};
  }
  --values_;  // `string` counts it, a name is none
  std::string_view out = string();
  if (failed()) return {};
  if (skip_space() != ':') fail_syntax("a colon");
  else ++at_;
  return out;
}

std::string_view JsonReader::string() {
  if (failed() || !count()) return {};
  const size_t begin = ++at_;
  size_t end = begin;
  while (end < text_.size() && kPlain[static_cast<unsigned char>(text_[end])]) ++end;
  if (end < text_.size() && text_[end] == '"') {
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  return decode(end - begin);
}

/// A string with escapes or characters beyond ASCII; `at_` is behind the opening quote, `plain` bytes are known to be
/// none.
std::string_view JsonReader::decode(size_t plain) {
  scratch_.assign(text_, at_, plain);
  at_ += plain;
  while (at_ < text_.size() && text_[at_] != '"') {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (kPlain[c]) {
      scratch_ += text_[at_++];
    } else if (c == '\\') {
      if (!escape(scratch_)) {
        fail("is not JSON: there is a wrong escape");
        return {};
      }
    } else if (size_t length = utf8_length(text_.substr(at_)); length > 1) {
      scratch_ += text_.substr(at_, length);
      at_ += length;
    } else {
      fail(c < 0x20 ? "is not JSON: there is a control character in a string" : "is not JSON: there is invalid UTF-8");
      return {};
    }
  }
  if (at_ == text_.size()) {
    fail_syntax("the end of a string");
    return {};
  }
  ++at_;
  return scratch_;
}

std::optional<unsigned> JsonReader::four_digits() {
  if (text_.size() - at_ < 4) return std::nullopt;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[at_++];
    const char lower = static_cast<char>(c | 0x20);
    if (is_digit(c)) out = out * 16 + static_cast<unsigned>(c - '0');
    else if (lower >= 'a' && lower <= 'f') out = out * 16 + static_cast<unsigned>(lower - 'a' + 10);
    else return std::nullopt;
  }
  return out;
}

bool JsonReader::escape(std::string& out) {
  static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  if (text_.size() - at_ < 2) return false;
  const char name = text_[at_ + 1];
  at_ += 2;
  if (name != 'u') {
    const size_t index = kNames.find(name);
    if (index == std::string_view::npos) return false;
    out += kValues[index];
    return true;
  }
  std::optional<unsigned> code = four_digits();
  if (!code || (*code >= 0xdc00 && *code < 0xe000)) return false;
  if (*code >= 0xd800 && *code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") return false;
    at_ += 2;
    const std::optional<unsigned> low = four_digits();
    if (!low || *low < 0xdc00 || *low >= 0xe000) return false;
    code = 0x10000 + ((*code - 0xd800) << 10) + *low - 0xdc00;
  }
  append_utf8(out, *code);
  return true;
}

bool JsonReader::word(std::string_view word) {
  if (failed() || !count()) return false;
  if (text_.substr(at_, word.size()) != word) fail_syntax("a value");
  else at_ += word.size();
  return !failed();
}

bool JsonReader::boolean() {
  const bool value = !failed() && text_[at_] == 't';
  return word(value ? "true" : "false") && value;
}

std::optional<JsonReader::Integer> JsonReader::number() {
  if (failed() || !count()) return std::nullopt;
  Integer out;
  auto digit = [&] { return at_ < text_.size() && is_digit(text_[at_]); };
  auto digits = [&] {
    if (!digit()) fail_syntax("a digit");
    while (digit()) ++at_;
  };
  out.negative = text_[at_] == '-';
  if (out.negative) ++at_;
  bool fits = true;
  const size_t begin = at_;
  for (; digit(); ++at_) {
    const auto value = static_cast<uint64_t>(text_[at_] - '0');
    fits = fits && !__builtin_mul_overflow(out.magnitude, uint64_t{10}, &out.magnitude) &&
           !__builtin_add_overflow(out.magnitude, value, &out.magnitude);
  }
  if (at_ == begin) fail_syntax("a digit");
  else if (text_[begin] == '0' && at_ > begin + 1) fail("is not JSON: a number begins with 0");
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
    fits = false;
  }
  if (at_ < text_.size() && (text_[at_] | 0x20) == 'e') {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
    fits = false;
  }
  if (failed() || !fits) return std::nullopt;
  return out;
}

void JsonReader::skip() {
  const char kind = peek();
  switch (kind) {
    case '{': case '[':
      enter();
      for (bool first = true; next(kind, first); first = false) {
        if (kind == '{') key();
        skip();
      }
      break;
    case '"': string(); break;
    case 'n': number(); break;
    case 't': case 'f': boolean(); break;
    case '0': word("null"); break;
    default: break;
  }
}

void JsonReader::finish() {
  if (!failed() && skip_space() != 0) fail("is not JSON: there is text behind its end");
}

void JsonReader::seek(const Position& position) {
  if (failed()) return;
  at_ = position.at;
  depth_ = position.depth;
  values_ = position.values;
}

bool json_nests_at_most(std::string_view text, size_t depth) {
  JsonReader reader(text, {depth, text.size() + 1});
  reader.skip();
  reader.finish();
  return !reader.failed();
}

}  // namespace ckpt
