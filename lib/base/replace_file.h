// A small file that is there with its old content or with its new one, never with a part of it.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "lib/base/result.h"

namespace ckpt::io {

/// What a replaced file is. Its mode is what `mode` and the umask leave, as of a new file.
struct NewFile {
  unsigned mode = 0600;
  bool durable = true;  ///< content and name are on disk before this returns
};

/// Written beside it into a new file, and renamed: `path` is created, or replaced where it is a file or a link, which
/// is not followed. After a failure the old one is there, and nothing else is left. A run that is killed leaves
/// ".ckpt-new-" and 16 digits, which belong to the name, and the next one to replace `path` removes it; but not where
/// several wrote `path` at once, or the file system has no locks.
Result<void> replace_file(const std::filesystem::path& path, std::string_view content, NewFile how = {});

/// The same, of what `write` puts into the descriptor.
Result<void> replace_file(const std::filesystem::path& path, const std::function<Result<void>(int fd)>& write,
                          NewFile how = {});

}  // namespace ckpt::io
