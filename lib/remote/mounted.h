// A checkpoint at a URL as a folder of this host: placeholders (lib/base/virtual_file.h) stand for its objects.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/remote/scratch_folder.h"

namespace ckpt::remote {

class Mounted {
 public:
  /// More objects are no checkpoint that somebody meant.
  static constexpr size_t kMostObjects = 2'000'000;

  /// Asks what lies at the URL, and makes placeholders in a folder of its own below TMPDIR, which the destructor takes
  /// away; those of a ckpt that was killed go first. kCorrupt: an object's name leads elsewhere. `cancel` must outlive
  /// it.
  static Result<std::unique_ptr<Mounted>> open(const std::string& url, const Cancel* cancel);
  ~Mounted();
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

  /// Of the placeholder that the URL is: a folder, or a file.
  const std::filesystem::path& path() const { return path_; }

  /// What lies beside the URL under another name, as a placeholder beside `path()`, where `path` must lie. False: there
  /// is nothing, or the place is another one.
  Result<bool> add_beside(const std::filesystem::path& path);

 private:
  explicit Mounted(const Cancel* cancel) : cancel_(cancel) {}
  Result<void> mount(const std::string& url, const std::filesystem::path& path);

  const Cancel* cancel_;
  ScratchFolder folder_;
  std::filesystem::path path_;
  std::string url_;
  std::vector<struct stat> placeholders_;
};

/// A text in which paths of placeholders are the URLs that the user gave; nothing: it has none of them.
std::optional<std::string> with_urls(std::string_view text);

}  // namespace ckpt::remote
