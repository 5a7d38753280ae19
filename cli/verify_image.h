// `verify` when its path is a process image (store::ImageReader::looks_like_image).
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace ckpt::cli {

/// Reads every byte of the image and its parents. Findings go to stdout; any of them is kAnswerNo.
Result<void> verify_image(Context& context, const std::filesystem::path& dir);

}  // namespace ckpt::cli
