// `verify` when its path is a process image (store::ImageReader::looks_like_image).
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace ckpt::cli {

struct VerifyImageOptions {
  bool rehearse = false;  ///< also make its processes in sealed namespaces and compare them (engine/rehearse.h)
  bool trust = false;     ///< rehearse also an image that another user owns or may write
};

/// Reads every byte of the image and its parents. Findings go to stdout: damage is kCorrupt, what a rehearsal finds
/// to be different kMismatch.
Result<void> verify_image(Context& context, const std::filesystem::path& dir, const VerifyImageOptions& options);

}  // namespace ckpt::cli
