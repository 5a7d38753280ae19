#include "lib/base/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lib/base/json_text.h"
#include "lib/base/result.h"

namespace ckpt {

namespace {

/// Past the string that starts at `at`.
size_t string_end(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

}  // namespace

void JsonWriter::new_line(size_t depth) {
  line_start_ = out_.size() + 1;
  out_.append(1 + 2 * depth, ' ');
  out_[line_start_ - 1] = '\n';
}

/// Before a member, or an element; `size`: of an element that has no brackets, else 0.
void JsonWriter::separate(size_t size) {
  if (frames_.empty()) return;
  Frame& frame = frames_.back();
  if (!frame.empty) out_ += ',';
  if (on_one_line()) {
    if (!frame.empty) out_ += ' ';
  } else if (frame.array && frame.after_scalar && size != 0 && column() + 2 + size < width_) {
    out_ += ' ';
  } else {
    new_line(frames_.size());
  }
  frame.empty = false;
  frame.after_scalar = size != 0;
}

void JsonWriter::open(char bracket) {
  if (!after_key_) separate(0);
  after_key_ = false;
  if (frames_.empty() && row_ == 0) broken_ = 1;  // the whole text is one line only as a row
  frames_.push_back({out_.size(), bracket == '['});
  out_ += bracket;
  check_width();
}

void JsonWriter::row(char bracket) {
  while (is_open_line()) break_line();
  if (row_ == 0) row_ = frames_.size() + 1;
  open(bracket);
}

void JsonWriter::close() {
  CKPT_ASSERT(!frames_.empty());
  const bool array = frames_.back().array;
  if (!on_one_line()) {
    if (!frames_.back().empty) new_line(frames_.size() - 1);
    --broken_;
  }
  if (row_ == frames_.size()) row_ = 0;
  frames_.pop_back();
  out_ += array ? ']' : '}';
}

void JsonWriter::key(std::string_view name) {
  separate(0);
  const size_t at = out_.size();
  out_.resize(at + name.size() + 4);
  char* to = out_.data() + at;
  *to = '"';
  std::memcpy(to + 1, name.data(), name.size());
  std::memcpy(to + 1 + name.size(), "\": ", 3);
  after_key_ = true;
}

void JsonWriter::key_text(std::string_view name) {
  scratch_.clear();
  append_json_string(scratch_, name);
  key_json(scratch_);
}

void JsonWriter::string(std::string_view text) {
  if (after_key_) {  // no need to know its length first
    append_json_string(out_, text);
    return end_value();
  }
  scratch_.clear();
  append_json_string(scratch_, text);
  scalar(scratch_);
}

void JsonWriter::real(double value) {
  if (std::isfinite(value)) scalar(fmt::format("{}", value));
  else null();
}

void JsonWriter::real(float value) {
  if (std::isfinite(value)) scalar(fmt::format("{}", value));
  else null();
}

void JsonWriter::scalar(std::string_view json) {
  if (!after_key_) separate(json.size());
  out_ += json;
  end_value();
}

void JsonWriter::hex(uint64_t value) {
  char text[24] = "\"0x";
  char* end = std::to_chars(text + 3, text + sizeof text, value, 16).ptr;
  *end++ = '"';
  scalar({text, static_cast<size_t>(end - text)});
}

void JsonWriter::end_value() {
  after_key_ = false;
  check_width();
}

/// Every bracket that is open on this line takes a column yet, and a comma may come behind the last.
void JsonWriter::check_width() {
  while (is_open_line() && column() + (frames_.size() - broken_) + 1 > width_) break_line();
}

/// Gives each element of the outermost object or array on this line a line: it is written once more, and each of those
/// in it is tried on one line again.
void JsonWriter::break_line() {
  const Frame outermost = frames_[broken_];
  const std::string line = out_.substr(outermost.start);
  out_.resize(outermost.start + 1);
  frames_.resize(++broken_);
  frames_.back() = {outermost.start, outermost.array};
  after_key_ = false;
  feed(std::string_view(line).substr(1));
}

void JsonWriter::feed(std::string_view json) {
  for (size_t i = 0; i < json.size();) {
    const char c = json[i];
    size_t end = i + 1;
    if (c == '{' || c == '[') {
      open(c);
    } else if (c == '}' || c == ']') {
      close();
    } else if (c == '"') {
      end = string_end(json, i);
      if (end < json.size() && json[end] == ':') {
        key(json.substr(i + 1, end - i - 2));
        ++end;
      } else {
        scalar(json.substr(i, end - i));
      }
    } else if (c != ',' && c != ' ' && c != '\n') {
      end = std::min(json.find_first_of(",]} \n", i), json.size());
      scalar(json.substr(i, end - i));
    }
    i = end;
  }
}

std::string JsonWriter::take() {
  const size_t settled = is_open_line() ? frames_[broken_].start : out_.size();
  std::string rest;
  rest.reserve(kPart + kPart / 2);
  rest.append(out_, settled);
  out_.resize(settled);
  line_start_ -= settled;
  for (Frame& frame : frames_) frame.start -= settled;
  return std::exchange(out_, std::move(rest));
}

std::string JsonWriter::finish() && {
  while (!frames_.empty()) close();
  out_ += '\n';
  return std::move(out_);
}

std::string lay_out_json(std::string_view json, size_t width) {
  JsonWriter writer(width);
  writer.feed(json);
  return std::move(writer).finish();
}

}  // namespace ckpt
