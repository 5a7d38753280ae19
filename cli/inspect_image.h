// A process image for people and for programs: what `inspect` and `load-metadata` say when their path is one
// (store::ImageReader::looks_like_image).
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "lib/store/process_image.h"

namespace ckpt::cli {

/// Which tables of each process are shown; none: a summary of it.
struct ImageViews {
  bool maps = false, descriptors = false, threads = false;
  bool any() const { return maps || descriptors || threads; }
};
/// What the image is, its tree of processes, and of each the summary or the tables that are asked for; with --json one
/// document of it all, schema ckpt.inspect/1.
Result<void> inspect_image(Context& context, const std::filesystem::path& dir, const ImageViews& views);
/// The same document as a page for a browser, put at `target`.
Result<void> write_image_page(Context& context, const std::filesystem::path& dir, const std::string& target);
/// The launches that make device memory again, as a graph in the language of Graphviz.
Result<void> inspect_device_graph(Context& context, const std::filesystem::path& dir);
/// From the manifest alone: how the image came about, what took no room in it and why.
Result<void> inspect_image_stats(Context& context, const std::filesystem::path& dir);
/// The manifest as it is stored, digests checked; no byte of the process's memory is read.
Result<void> load_image_metadata(Context& context, const std::filesystem::path& dir);

}  // namespace ckpt::cli
