#include "lib/state/mounts/overlay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "lib/base/text.h"

namespace ckpt::state {

std::optional<std::vector<std::string>> overlay_folders(const std::string& options) {
  constexpr std::array<std::string_view, 5> kFolders = {"lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir"};
  std::vector<std::string> out;
  for (std::string_view rest = options; !rest.empty();) {
    const std::string_view word = take_field(rest, ',');
    const size_t equals = word.find('=');
    if (std::find(kFolders.begin(), kFolders.end(), word.substr(0, equals)) == kFolders.end()) {
      if (word.starts_with('/')) return std::nullopt;  // the rest of a path with a comma
      continue;
    }
    if (equals == std::string_view::npos || word.find('\\') != std::string_view::npos) return std::nullopt;
    for (std::string_view paths = word.substr(equals + 1); !paths.empty();) {
      const std::string_view path = take_field(paths, ':');
      if (path.empty()) continue;  // "::", in front of layers that have data only
      if (!path.starts_with('/')) return std::nullopt;
      out.emplace_back(path);
    }
  }
  if (out.empty()) return std::nullopt;
  return out;
}

bool shows_layers(int overlay, const std::vector<UniqueFd>& layers) {
  std::error_code ec;
  std::filesystem::directory_iterator it(fmt::format("/proc/self/fd/{}", overlay), ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename();
    const auto has_it = [&](const UniqueFd& layer) {
      struct stat st {};
      return ::fstatat(layer.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0;
    };
    if (std::none_of(layers.begin(), layers.end(), has_it)) return false;
  }
  return !ec;
}

}  // namespace ckpt::state
