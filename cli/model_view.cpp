#include "cli/model_view.h"

#include <algorithm>

#include "lib/base/text.h"

namespace ckpt::cli {

Result<tensor::Catalog> open_metadata(const std::filesystem::path& path, const std::string& from) {
  formats::ReadOptions options;
  options.locate_data = false;
  options.tolerate_damage = true;
  options.from = from;
  return formats::open_checkpoint(path, options);
}

Result<tensor::Catalog> open_data(const std::filesystem::path& path, const std::string& from) {
  formats::ReadOptions options;
  options.tolerate_damage = true;
  options.from = from;
  return formats::open_checkpoint(path, options);
}

void add_from(VerbOptions& app, std::string& from) {
  std::vector<std::string> names = {"auto"};
  for (const formats::Format& format : formats::formats()) names.emplace_back(format.name);
  app.add_option("--from", from, "The format to read (default: auto)").type_name("FORMAT").one_of(names);
}

void add_max_memory(VerbOptions& app, uint64_t& bytes) {
  app.add_option("--max-memory", bytes, "Memory to stay under (default: 256MiB)")
      .type_name("SIZE")
      .as_size()
      .positive();
}

std::vector<std::string> texts_of(const std::vector<tensor::Unreadable>& entries) {
  std::vector<std::string> out;
  for (const tensor::Unreadable& entry : entries) out.push_back(entry.text());
  return out;
}

std::vector<std::string> texts_of(const std::vector<tensor::Finding>& findings) {
  std::vector<std::string> out;
  for (const tensor::Finding& finding : findings) out.push_back(finding.text());
  return out;
}

std::string shape_text(const tensor::Shape& shape) {
  if (shape.empty()) return "scalar";
  std::string out;
  for (uint64_t n : shape) out += (out.empty() ? "" : "x") + std::to_string(n);
  return out;
}

bool matches_any(const std::vector<std::string>& globs, std::string_view key) {
  return globs.empty() ||
         std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, key); });
}

}  // namespace ckpt::cli
