// Folders of a stranger.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::formats {

/// What is in a folder, sorted; kCorrupt past a number that no checkpoint has.
Result<std::vector<std::filesystem::directory_entry>> list_folder(const std::filesystem::path& dir);
/// A regular file as a whole; kCorrupt: it is larger, or something else (a pipe would be waited for).
Result<std::string> read_document(const std::filesystem::path& path, uint64_t limit);
/// Whether there is anything of this name, a dangling link included.
bool has_entry(const std::filesystem::path& path);

}  // namespace ckpt::formats
