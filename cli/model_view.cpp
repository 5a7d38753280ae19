#include "cli/model_view.h"

#include <algorithm>

#include "lib/base/text.h"

namespace ckpt::cli {

Result<tensor::Catalog> open_metadata(const std::filesystem::path& path) {
  formats::ReadOptions options;
  options.locate_data = false;
  return formats::open_checkpoint(path, options);
}

std::string shape_text(const tensor::Shape& shape) {
  if (shape.empty()) return "scalar";
  std::string out;
  for (uint64_t n : shape) out += (out.empty() ? "" : "x") + std::to_string(n);
  return out;
}

bool natural_less(std::string_view a, std::string_view b) {
  auto digit = [](char c) { return c >= '0' && c <= '9'; };
  auto number = [&](std::string_view& text) {
    size_t zeros = std::min(text.find_first_not_of('0'), text.size());
    size_t end = zeros;
    while (end < text.size() && digit(text[end])) ++end;
    std::string_view out = text.substr(zeros, end - zeros);
    text.remove_prefix(end);
    return out;
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      std::string_view x = number(a), y = number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

bool matches_any(const std::vector<std::string>& globs, std::string_view key) {
  return globs.empty() || std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, key); });
}

void append_json_numbers(std::string& out, const tensor::Shape& numbers) {
  out += '[';
  for (size_t i = 0; i < numbers.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  out += ']';
}

}  // namespace ckpt::cli
