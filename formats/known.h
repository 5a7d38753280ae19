// Formats that are known by name and not read: what they are, and what can be done with them.
#pragma once

#include <filesystem>
#include <optional>

#include "lib/base/result.h"

namespace ckpt::formats {

/// kUnsupported, with a hint which part can be read by itself or which tool makes something readable of it. Nothing:
/// not known.
std::optional<Error> name_unread_format(const std::filesystem::path& path);

}  // namespace ckpt::formats
