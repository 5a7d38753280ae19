#include "cli/table.h"

#include <fmt/format.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <array>

namespace ckpt::cli {

namespace {

constexpr size_t kLeast = 12;  ///< no column is cut to less
constexpr std::string_view kGap = "  ", kCut = "...";

/// The character that a text begins with, and the bytes that it takes; broken UTF-8 is taken byte by byte.
struct Character {
  wchar_t code = 0;
  size_t bytes = 1;
};
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t bytes = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  if (bytes == 1 || bytes > text.size()) return {static_cast<wchar_t>(lead), 1};
  wchar_t code = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i)
    code = static_cast<wchar_t>(code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f));
  return {code, bytes};
}

/// By the C library's table, whatever locale the user has.
size_t columns_of(wchar_t code) {
  if (code < 0x300) return 1;
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t before = ::uselocale(utf8);
  const int width = ::wcwidth(code);
  ::uselocale(before);
  return width < 0 ? 1 : static_cast<size_t>(width);
}

/// The longest beginning of at most so many columns.
std::string_view beginning(std::string_view text, size_t columns) {
  size_t at = 0, used = 0;
  while (at < text.size()) {
    const Character next = first_character(text.substr(at));
    used += columns_of(next.code);
    if (used > columns) break;
    at += next.bytes;
  }
  return text.substr(0, at);
}

/// The longest end of at most so many columns.
std::string_view ending(std::string_view text, size_t columns) {
  size_t all = display_width(text), at = 0;
  while (all > columns) {
    const Character next = first_character(text.substr(at));
    all -= columns_of(next.code);
    at += next.bytes;
  }
  return text.substr(at);
}

std::string padded(const std::string& text, size_t columns, bool right) {
  const std::string pad(columns - std::min(columns, display_width(text)), ' ');
  return right ? pad + text : text + pad;
}

void trim_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

size_t total(const std::vector<size_t>& widths) {
  size_t sum = widths.empty() ? 0 : (widths.size() - 1) * kGap.size();
  for (const size_t width : widths) sum += width;
  return sum;
}

/// The widest columns of words become narrower until all fit, or none may become so.
void fit(std::vector<size_t>& widths, const std::vector<size_t>& right, size_t columns) {
  for (size_t all = total(widths); all > columns; --all) {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i) {
      const bool number = std::find(right.begin(), right.end(), i) != right.end();
      if (!number && widths[i] > kLeast && (widest == widths.size() || widths[i] > widths[widest])) widest = i;
    }
    if (widest == widths.size()) return;
    --widths[widest];
  }
}

/// The text at spaces, in lines of at most so many columns; a longer word has a line of its own.
std::vector<std::string> wrapped(const std::string& text, size_t columns) {
  std::vector<std::string> out = {""};
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!out.back().empty() && display_width(out.back()) + 1 + display_width(word) > columns) out.emplace_back();
    out.back() += (out.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out;
}

std::vector<std::string> lay_out_pairs(const Table& table, const std::vector<size_t>& widths, size_t columns) {
  std::vector<std::string> lines;
  const size_t indent = widths[0] + kGap.size();
  for (const auto& row : table.rows) {
    const bool narrow = columns < indent + kLeast;
    const std::vector<std::string> parts =
        narrow ? std::vector<std::string>{row[1]} : wrapped(row[1], columns - indent);
    for (size_t i = 0; i < parts.size(); ++i) {
      lines.push_back((i == 0 ? padded(row[0], widths[0], false) + std::string(kGap) : std::string(indent, ' ')) +
                      parts[i]);
      trim_end(lines.back());
    }
  }
  return lines;
}

}  // namespace

size_t display_width(std::string_view text) {
  size_t out = 0;
  while (!text.empty()) {
    const Character next = first_character(text);
    out += columns_of(next.code);
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::string elide_middle(const std::string& text, size_t columns) {
  if (display_width(text) <= columns) return text;
  if (columns <= kCut.size()) return std::string(beginning(text, columns));
  const size_t front = (columns - kCut.size()) / 2;
  return std::string(beginning(text, front)) + std::string(kCut) +
         std::string(ending(text, columns - kCut.size() - front));
}

std::string with_verdict(const std::string& text) {
  constexpr std::array kRight = {"yes", "safe", "complete"};
  constexpr std::array kWrong = {"NO", "damaged", "dangerous", "differs", "different", "incomplete", "missing"};
  constexpr std::array kOdd = {"no", "warning", "unknown"};
  const std::string word = text.substr(0, text.find_first_of(": "));
  const auto is_in = [&](const auto& words) { return std::find(words.begin(), words.end(), word) != words.end(); };
  const char* color = is_in(kRight) ? "32" : is_in(kWrong) ? "1;31" : is_in(kOdd) ? "33" : nullptr;
  if (color == nullptr) return text;
  return fmt::format("\033[{}m{}\033[0m{}", color, word, text.substr(word.size()));
}

std::vector<std::string> lay_out(const Table& table, size_t columns) {
  std::vector<std::vector<std::string>> all;
  if (!table.header.empty()) all.push_back(table.header);
  all.insert(all.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths;
  bool pairs = table.header.empty() && !all.empty();
  for (const auto& row : all) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
    pairs &= row.size() == 2;
  }
  if (columns != 0 && total(widths) > columns) {
    if (pairs) return lay_out_pairs(table, widths, columns);
    fit(widths, table.right, columns);
  }
  std::vector<std::string> lines;
  for (const auto& row : all) {
    std::string& line = lines.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = std::find(table.right.begin(), table.right.end(), i) != table.right.end();
      const std::string cell = padded(elide_middle(row[i], widths[i]), widths[i], right);
      const bool is_verdict = std::find(table.verdicts.begin(), table.verdicts.end(), i) != table.verdicts.end();
      line += (i == 0 ? "" : std::string(kGap)) + (is_verdict && lines.size() > 1 ? with_verdict(cell) : cell);
    }
    trim_end(line);
  }
  return lines;
}

size_t terminal_columns(int fd) {
  winsize size{};
  return ::isatty(fd) != 0 && ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace ckpt::cli
