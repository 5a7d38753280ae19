// A process image for people and for programs: what `inspect` and `load-metadata` say when their path is one
// (store::ImageReader::looks_like_image).
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "lib/store/process_image.h"

namespace ckpt::cli {

/// Summary, mappings, descriptors and threads as tables; with --json one document, schema ckpt.inspect/1.
Result<void> inspect_image(Context& context, const std::filesystem::path& dir);
/// From the manifest alone: how the image came about, what took no room in it and why.
Result<void> inspect_image_stats(Context& context, const std::filesystem::path& dir);
/// The manifest as it is stored, digests checked; no byte of the process's memory is read.
Result<void> load_image_metadata(Context& context, const std::filesystem::path& dir);

}  // namespace ckpt::cli
