#include "lib/model/slice.h"

#include <algorithm>
#include <charconv>

namespace ckpt::model {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t end = text.find(at);
    out.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

Error wrong(std::string_view term, const std::string& why) { return Error(Code::kUsage, std::string(term), why); }

/// A bound of an axis; nothing for an empty word. Negative ones from the end.
Result<std::optional<int64_t>> parse_bound(std::string_view word, uint64_t length) {
  if (word.empty()) return std::optional<int64_t>();
  int64_t value = 0;
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return wrong(word, "is not an index");
  if (length > INT64_MAX) return wrong(word, "the axis is too long to be cut");
  if (value < 0) value += static_cast<int64_t>(length);
  return std::optional<int64_t>(value);
}

/// One axis: begin and length. `single`: the axis goes away.
Result<void> parse_axis(std::string_view term, uint64_t length, uint64_t& begin, uint64_t& count, bool& single) {
  std::vector<std::string_view> words = split(term, ':');
  if (words.size() == 3 && (words[2].empty() || words[2] == "1")) words.pop_back();
  if (words.size() > 2) return wrong(term, "steps other than 1 are not read");
  CKPT_TRY_ASSIGN(auto from, parse_bound(words[0], length));
  single = words.size() == 1;
  const auto limit = static_cast<int64_t>(std::min<uint64_t>(length, INT64_MAX));
  if (single) {
    if (!from) return wrong(term, "an index is missing");
    if (*from < 0 || *from >= limit) return wrong(term, "is past an axis of length " + std::to_string(length));
    begin = static_cast<uint64_t>(*from);
    count = 1;
    return {};
  }
  CKPT_TRY_ASSIGN(auto to, parse_bound(words[1], length));
  const int64_t first = std::clamp<int64_t>(from.value_or(0), 0, limit),
                last = std::clamp<int64_t>(to.value_or(limit), 0, limit);
  begin = static_cast<uint64_t>(first);
  count = last > first ? static_cast<uint64_t>(last - first) : 0;
  // A missing end is the axis's, however long it is.
  if (!to && length > INT64_MAX) count = length - begin;
  return {};
}

}  // namespace

Result<Slice> parse_slice(std::string_view text, const tensor::Shape& shape) {
  text = trimmed(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = trimmed(text.substr(1, text.size() - 2));
  std::vector<std::string_view> terms = text.empty() ? std::vector<std::string_view>() : split(text, ',');
  if (terms.size() > 1 && terms.back().empty()) terms.pop_back();
  auto dots = std::find(terms.begin(), terms.end(), "...");
  const size_t named = terms.size() - (dots == terms.end() ? 0 : 1);
  if (named > shape.size()) {
    return wrong(text,
                 "has " + std::to_string(named) + " terms, the tensor has " + std::to_string(shape.size()) + " axes");
  }
  const auto before = static_cast<size_t>(dots - terms.begin());
  if (dots == terms.end()) terms.resize(shape.size(), ":");
  else terms.erase(dots);
  terms.insert(terms.begin() + static_cast<std::ptrdiff_t>(before), shape.size() - terms.size(), ":");

  Slice out{{tensor::Shape(shape.size(), 0), tensor::Shape(shape.size(), 0)}, {}};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    bool single = false;
    CKPT_TRY(parse_axis(terms[axis], shape[axis], out.region.offset[axis], out.region.shape[axis], single));
    if (!single) out.shape.push_back(out.region.shape[axis]);
  }
  return out;
}

}  // namespace ckpt::model
