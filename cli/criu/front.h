// ckpt in criu's place: called by criu's name (a link), or as `ckpt criu ...`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"

namespace ckpt::cli::criu {

/// The words that are criu's; nothing: the command line is ckpt's own.
std::optional<std::vector<std::string>> words_for_criu(int argc, const char* const* argv);

/// Runs what they say and returns the exit code, criu's: 0 or 1, or that of the process that a restore stood in for.
int run(const std::vector<std::string>& words, const Cancel& cancel);

}  // namespace ckpt::cli::criu
