// Keys that become paths: formats whose tensors are files or folders of their own.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/result.h"
#include "lib/tensor/selection.h"

namespace ckpt::formats {

/// Folders in folders that a reader goes into. A key that is written has fewer parts, for it has fewer bytes than twice
/// that.
inline constexpr size_t kMaxFolderDepth = 1750;

struct PathRules {
  std::string_view format;         ///< for messages
  std::string_view suffix;         ///< what a tensor's path has behind its key: ".npy"
  std::string_view reserved_prefix;///< no part of a key may begin so
  std::string_view reserved_name;  ///< ... or be this
};

/// kUsage where keys cannot be paths below a folder, each one listed: empty parts (as an absolute path has), "." and
/// "..", control characters, parts that are too long, no UTF-8, a file where another key needs a folder. A key's parts
/// stand between slashes. Returns a note where keys differ only in case, else nothing.
Result<std::string> check_path_keys(const tensor::Selection& selection, const PathRules& rules);

}  // namespace ckpt::formats
