#include "cli/model_view.h"

#include <algorithm>

#include "lib/base/text.h"

namespace ckpt::cli {

Result<tensor::Catalog> open_metadata(const std::filesystem::path& path) {
  formats::ReadOptions options;
  options.locate_data = false;
  return formats::open_checkpoint(path, options);
}

Result<tensor::Catalog> open_data(const std::filesystem::path& path) {
  formats::ReadOptions options;
  options.tolerate_damage = true;
  return formats::open_checkpoint(path, options);
}

std::string shape_text(const tensor::Shape& shape) {
  if (shape.empty()) return "scalar";
  std::string out;
  for (uint64_t n : shape) out += (out.empty() ? "" : "x") + std::to_string(n);
  return out;
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
