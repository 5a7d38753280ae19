#include "lib/base/json_layout.h"

#include "lib/base/result.h"

namespace ckpt {

namespace {

class Layout {
 public:
  Layout(std::string_view text, size_t width) : text_(text), width_(width) {}

  std::string run() {
    value(0);
    out_ += '\n';
    return std::move(out_);
  }

 private:
  /// Past the string that starts at `at`.
  size_t string_end(size_t at) const {
    for (++at; text_[at] != '"'; ++at) {
      if (text_[at] == '\\') ++at;
    }
    return at + 1;
  }
  bool opens(size_t at) const { return text_[at] == '{' || text_[at] == '['; }
  bool closes(size_t at) const { return text_[at] == '}' || text_[at] == ']'; }

  /// The container at `pos_` on one line, if that is short enough: then it is taken.
  bool on_one_line(size_t column) {
    std::string line;
    size_t depth = 0, at = pos_;
    do {
      if (column + line.size() > width_) return false;
      if (text_[at] == '"') {
        size_t end = string_end(at);
        line += text_.substr(at, end - at);
        at = end;
        continue;
      }
      if (opens(at)) ++depth;
      if (closes(at)) --depth;
      line += text_[at];
      if (text_[at] == ',' || text_[at] == ':') line += ' ';
      ++at;
    } while (depth > 0);
    if (column + line.size() > width_) return false;
    out_ += line;
    pos_ = at;
    return true;
  }

  void new_line(size_t indent) {
    out_ += '\n';
    line_start_ = out_.size();
    out_.append(indent, ' ');
  }
  size_t column() const { return out_.size() - line_start_; }

  void scalar() {
    size_t end = pos_;
    if (text_[end] == '"') {
      end = string_end(end);
    } else {
      while (end < text_.size() && text_[end] != ',' && !closes(end)) ++end;
    }
    out_ += text_.substr(pos_, end - pos_);
    pos_ = end;
  }

  void value(size_t indent) {
    if (!opens(pos_)) return scalar();
    // One column is kept for the comma behind it.
    if (indent > 0 && on_one_line(column() + 1)) return;
    bool object = text_[pos_] == '{';
    out_ += text_[pos_++];
    bool after_scalar = false;
    while (!closes(pos_)) {
      size_t end = opens(pos_) ? pos_ : text_[pos_] == '"' ? string_end(pos_) : text_.find_first_of(",]}", pos_);
      bool fill = !object && after_scalar && !opens(pos_) && column() + 2 + (end - pos_) < width_;
      if (fill) out_ += ' ';
      else new_line(indent + 2);
      if (object) {
        scalar();
        out_ += ": ";
        ++pos_;
      }
      after_scalar = !opens(pos_);
      value(indent + 2);
      if (text_[pos_] == ',') out_ += text_[pos_++];
    }
    new_line(indent);
    out_ += text_[pos_++];
  }

  std::string_view text_;
  size_t width_;
  size_t pos_ = 0;
  std::string out_;
  size_t line_start_ = 0;
};

}  // namespace

std::string lay_out_json(std::string_view compact, size_t width) {
  CKPT_ASSERT(!compact.empty());
  return Layout(compact, width).run();
}

}  // namespace ckpt
