// JSON as ckpt writes it: laid out for people, handed out in parts where it is too large for memory.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ckpt {

/// Writes one JSON value piece by piece, laid out: an object or array that fits into `width` columns takes one line,
/// long arrays of scalars are filled line by line. The caller keeps to JSON's grammar.
class JsonWriter {
 public:
  /// `width` 0: a line for every member and element, as Python's json.dumps(indent=2) has it. `expected`: bytes of
  /// text, for memory; more and less will do.
  explicit JsonWriter(size_t width = 120, size_t expected = 0) : width_(width) { out_.reserve(expected); }

  /// `bracket`: '{' or '['.
  void open(char bracket);
  /// The same as the value of a member.
  void open(std::string_view name, char bracket) {
    key(name);
    open(bracket);
  }
  /// Opens what stays on one line however long it gets: a tensor of a list of them. All around it is broken into lines.
  void row(char bracket);
  void close();

  /// A member with its value.
  template <class V>
  void member(std::string_view name, const V& v) {
    key(name);
    value(v);
  }
  /// Several of them: name, value, name, value.
  template <class V, class... Rest>
  void members(std::string_view name, const V& v, const Rest&... rest) {
    member(name, v);
    if constexpr (sizeof...(rest) != 0) members(rest...);
  }
  /// An object of such members on one line.
  template <class... All>
  void row_of(const All&... all) {
    row('{');
    members(all...);
    close();
  }
  /// Of the member whose value comes next; printable ASCII without quotes and backslashes.
  void key(std::string_view name);
  /// A name that is data, escaped as `string` does.
  void key_text(std::string_view name);
  /// A name as it is to be written, with its quotes.
  void key_json(std::string_view quoted) { key(quoted.substr(1, quoted.size() - 2)); }

  /// Text, bool, an integer, floating point, an optional of these (else null) or a list of them.
  template <class V>
  void value(const V& v) {
    if constexpr (std::is_same_v<V, bool>) boolean(v);
    else if constexpr (std::is_integral_v<V>) number(v);
    else if constexpr (std::is_floating_point_v<V>) real(v);
    else if constexpr (std::is_convertible_v<const V&, std::string_view>) string(v);
    else if constexpr (requires { v.has_value(); }) v ? value(*v) : null();
    else list(v);
  }
  /// Several of them.
  template <class... All>
  void values(const All&... all) {
    (value(all), ...);
  }
  /// In quotes, as append_json_string does it: any bytes become valid JSON.
  void string(std::string_view text);
  void boolean(bool value) { scalar(value ? "true" : "false"); }
  void null() { scalar("null"); }
  template <class I>
  void number(I value) {
    char text[24];
    scalar({text, static_cast<size_t>(std::to_chars(text, text + sizeof text, value).ptr - text)});
  }
  /// The fewest digits that read back as the same value; null for what is not finite.
  void real(double value);
  void real(float value);
  /// "0x..", in quotes.
  void hex(uint64_t value);
  /// A string with its quotes, a number, a word: as it is to be written.
  void scalar(std::string_view json);
  /// All that is left to write, or the pieces of it: valid JSON, white space between the pieces allowed.
  void feed(std::string_view json);
  /// The same as the value of a member.
  void feed(std::string_view name, std::string_view json) {
    key(name);
    feed(json);
  }

  /// There is enough for a write: time for `take`.
  bool full() const { return out_.size() > kPart; }
  /// What is settled since the last call: all before the line that may yet be laid out anew. A document of any size is
  /// so written in little memory.
  std::string take();
  /// Closes what is open. The rest of the text, with a newline at its end.
  std::string finish() &&;

 private:
  static constexpr size_t kPart = 64 << 10;
  struct Frame {
    size_t start = 0;           ///< of the bracket, in `out_`
    bool array = false;
    bool empty = true;
    bool after_scalar = false;  ///< the last element was none with brackets
  };

  template <class L>
  void list(const L& values) {
    open('[');
    for (const auto& one : values) value(one);
    close();
  }
  size_t column() const { return out_.size() - line_start_; }
  bool on_one_line() const { return frames_.size() > broken_; }
  /// The line's beginning may still move: its outermost bracket can be given lines.
  bool is_open_line() const { return on_one_line() && row_ == 0; }
  void new_line(size_t depth);
  void separate(size_t size);
  void end_value();
  void check_width();
  void break_line();

  const size_t width_;
  std::string out_;
  std::string scratch_;
  size_t line_start_ = 0;      ///< in `out_`; where it was taken already, below 0 modulo 2^64
  std::vector<Frame> frames_;  ///< open objects and arrays, the outermost first
  size_t broken_ = 0;          ///< so many of them have a line for each element; the rest are on one line up to now
  size_t row_ = 0;             ///< so many frames are open where the outermost row begins, itself counted; 0: no row
  bool after_key_ = false;
};

/// Breaks and indents JSON, which must be valid.
std::string lay_out_json(std::string_view json, size_t width = 120);

}  // namespace ckpt
