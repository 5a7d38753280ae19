#include "formats/path_keys.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "formats/writers.h"
#include "lib/base/json_text.h"

namespace ckpt::formats {

namespace {

constexpr size_t kMaxPart = 240;    ///< of 255 bytes: what is appended while a file is written needs room
constexpr size_t kMaxPath = 3500;   ///< of 4096
static_assert(kMaxPath <= 2 * kMaxFolderDepth);

/// Why a key cannot be a path; empty: it can.
std::string unfit(std::string_view key, const PathRules& rules) {
  if (!is_valid_utf8(key)) return "is not UTF-8";
  if (key.size() > kMaxPath) return "is too long";
  if (std::any_of(key.begin(), key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return "has control characters";
  for (size_t begin = 0;;) {
    const size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view part = key.substr(begin, end - begin);
    if (part.empty()) return "has an empty part";
    if (part.find_first_not_of('.') == std::string_view::npos) return "has a part of nothing but dots";
    if (part.size() + rules.suffix.size() > kMaxPart) return "has a part that is too long";
    if (!rules.reserved_prefix.empty() && part.starts_with(rules.reserved_prefix))
      return "has a part that begins with " + std::string(rules.reserved_prefix);
    if (!rules.reserved_name.empty() && part == rules.reserved_name)
      return "has a part that is called " + std::string(rules.reserved_name);
    if (end == key.size()) return "";
    begin = end + 1;
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(c < 0x80 ? std::tolower(c) : c); });
  return out;
}

}  // namespace

Result<std::string> check_path_keys(const tensor::Selection& selection, const PathRules& rules) {
  std::vector<std::string> bad;
  std::unordered_set<std::string_view> folders;
  std::unordered_map<std::string, std::string_view> folded;
  std::string note;
  for (const tensor::Target& target : selection.tensors) {
    if (std::string why = unfit(target.key, rules); !why.empty()) bad.push_back(target.key + ": " + why);
    for (size_t at = target.key.find('/'); at != std::string::npos; at = target.key.find('/', at + 1)) {
      folders.insert(std::string_view(target.key).substr(0, at));
    }
    auto [twin, added] = folded.try_emplace(lower(target.key), target.key);
    if (!added && note.empty())
      note =
          std::string(twin->second) + " and " + target.key + " differ only in case: some file systems cannot hold both";
  }
  for (const tensor::Target& target : selection.tensors) {
    if (!rules.suffix.empty() ? folders.count(target.key + std::string(rules.suffix)) != 0
                              : folders.count(target.key) != 0) {
      bad.push_back(target.key + ": another key needs a folder of this name");
    }
  }
  if (bad.empty()) return note;
  return with_causes(Error(Code::kUsage, selection.source->root.string(),
                           "holds keys that cannot be paths, as " + std::string(rules.format) + " needs them")
                         .with_hint("give them other names with --rename, or leave them out with --exclude"),
                     std::move(bad));
}

}  // namespace ckpt::formats
