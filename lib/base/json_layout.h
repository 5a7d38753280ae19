// JSON for people: what fits on a line stays on one line.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

/// Writes one JSON value piece by piece, laid out: an object or array that fits into `width` columns takes one line,
/// long arrays of scalars are filled line by line. The caller keeps to JSON's grammar.
class JsonWriter {
 public:
  /// `expected`: bytes of text, for memory; more and less will do.
  explicit JsonWriter(size_t width = 120, size_t expected = 0) : width_(width) { out_.reserve(expected); }

  /// `bracket`: '{' or '['.
  void open(char bracket);
  void close();
  /// Of the member whose value comes next; printable ASCII without quotes and backslashes.
  void key(std::string_view name);
  /// A string with its quotes, a number, a word: as it is to be written.
  void scalar(std::string_view json);
  template <class I>
  void number(I value) {
    char text[24];
    scalar({text, static_cast<size_t>(std::to_chars(text, text + sizeof text, value).ptr - text)});
  }
  /// "0x..", in quotes.
  void hex(uint64_t value);
  /// All that is left to write, or the pieces of it: valid JSON, white space between the pieces allowed.
  void feed(std::string_view json);
  /// The text, with a newline at its end.
  std::string finish() &&;

 private:
  struct Frame {
    size_t start = 0;           ///< of the bracket, in `out_`
    bool array = false;
    bool empty = true;
    bool after_scalar = false;  ///< the last element was none with brackets
  };

  size_t column() const { return out_.size() - line_start_; }
  bool on_one_line() const { return frames_.size() > broken_; }
  void new_line(size_t depth);
  void separate(size_t size);
  void check_width();
  void break_line();

  const size_t width_;
  std::string out_;
  size_t line_start_ = 0;
  std::vector<Frame> frames_;  ///< open objects and arrays, the outermost first
  size_t broken_ = 0;          ///< so many of them have a line for each element; the rest are on one line up to now
  bool after_key_ = false;
};

/// Breaks and indents JSON, which must be valid.
std::string lay_out_json(std::string_view json, size_t width = 120);

}  // namespace ckpt
