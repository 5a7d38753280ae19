#include "lib/model/verify/folder.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>


namespace ckpt::model {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxEntries = 8'000'000;
constexpr int kMaxDepth = 64;

Result<void> walk(const fs::path& root,
                  const std::function<void(const fs::directory_entry&, const std::string& path)>& each) {
  std::error_code ec;
  size_t seen = 0;
  for (fs::recursive_directory_iterator it(root, ec), end; !ec && it != end; it.increment(ec)) {
    if (++seen > kMaxEntries) return fail(Code::kCorrupt, root.string(), "holds too many entries");
    if (it.depth() >= kMaxDepth) it.disable_recursion_pending();
    each(*it, it->path().lexically_relative(root).string());
  }
  if (ec) return sys_error(ec.value(), root.string(), "cannot list");
  return {};
}

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

/// "0.1", "3", or the last number of a nested "0/1": a chunk of a zarr array.
bool is_chunk_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos && name[0] != '.';
}

std::string lower_ascii(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

class Checker {
 public:
  Checker(const tensor::Catalog& catalog, const std::function<void(tensor::Finding)>& note)
      : catalog_(catalog), note_(note) {
    for (const tensor::SourceFile& file : catalog.files) known_.insert(file.path);
  }

  void check(const fs::directory_entry& entry, const std::string& path) {
    std::error_code ec;
    const fs::file_status status = entry.symlink_status(ec);
    if (fs::is_symlink(status)) check_link(entry.path(), path);
    else if (fs::is_regular_file(status)) check_regular(path);
    else if (!ec && !fs::is_directory(status))
      note_({"", path, std::nullopt, "is a pipe, a socket or a device", false});
    check_name(path);
  }

 private:
  /// Readers follow links to files, wherever they lead: those of the Hugging Face hub's cache all lead out.
  void check_link(const fs::path& link, const std::string& path) {
    std::error_code ec, ignored;
    const fs::file_status to = fs::status(link, ec);
    if (fs::is_regular_file(to)) return check_regular(path);
    const std::string text = "is a link to " + fs::read_symlink(link, ignored).string();
    if (!fs::exists(to)) note_({"", path, std::nullopt, text + ", where nothing is", true});
    else if (fs::is_directory(to)) note_({"", path, std::nullopt, text + ", a folder, which is not followed", true});
    else note_({"", path, std::nullopt, text + ", which is no regular file", false});
  }

  void check_regular(const std::string& path) {
    const bool data = ends_with(path, ".distcp") || ends_with(path, ".safetensors") ||
                      (catalog_.format.substr(0, 4) == "zarr" && path.find(".sync/") == std::string::npos &&
                       is_chunk_name(std::string_view(path).substr(path.rfind('/') + 1)));
    if (data && known_.count(path) == 0) note_({"", path, std::nullopt, "no metadata refers to this file", true});
  }

  void check_name(const std::string& path) {
    if (std::any_of(path.begin(), path.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
      note_({"", path, std::nullopt, "its name holds control characters", true});
    }
    auto [twin, added] = folded_.try_emplace(lower_ascii(path), path);
    if (!added && twin->second != path) {
      note_({"", path, std::nullopt,
             "differs from " + twin->second + " only in case: one of them is lost where case does not count", true});
    }
  }

  const tensor::Catalog& catalog_;
  const std::function<void(tensor::Finding)>& note_;
  std::unordered_set<std::string_view> known_;
  std::unordered_map<std::string, std::string> folded_;
};

}  // namespace

Result<std::vector<FolderEntry>> list_files(const fs::path& root) {
  std::vector<FolderEntry> out;
  std::error_code ec;
  if (!fs::is_directory(root, ec)) {
    out.push_back({root.filename().string(), fs::file_size(root, ec)});
    if (ec) return sys_error(ec.value(), root.string(), "cannot look at");
    return out;
  }
  CKPT_TRY(walk(root, [&](const fs::directory_entry& entry, const std::string& path) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) out.push_back({path, entry.file_size(ignored)});
  }));
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

Result<void> check_folder(const tensor::Catalog& catalog, const std::function<void(tensor::Finding)>& note) {
  std::error_code ec;
  if (!fs::is_directory(catalog.root, ec)) return {};
  Checker checker(catalog, note);
  return walk(catalog.root,
              [&](const fs::directory_entry& entry, const std::string& path) { checker.check(entry, path); });
}

}  // namespace ckpt::model
