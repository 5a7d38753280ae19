#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/app.h"
#include "lib/base/linkage.h"
#include "lib/store/features.h"
#include "plugins/cuda/kernel_image.h"

#ifndef CKPT_COMMIT
#define CKPT_COMMIT ""
#endif

namespace ckpt::cli {

namespace {

/// Of chunks of arrays; no build is without one of them.
constexpr const char* kCodecs[] = {"blosc", "bz2", "gzip", "lz4", "zlib", "zstd"};

/// What sets one build apart from another of the same source.
struct Build {
  bool linked_statically = ckpt::linked_statically();
  bool kernels = !cuda::built_in_kernels().empty() && !linked_statically;
};

std::string linkage_text(const Build& build) {
  return build.linked_statically
             ? "linked statically, without GPUs and nftables: the Debian package and a build from source have them"
             : "linked dynamically; the GPU driver and nftables are loaded where they are needed";
}

}  // namespace

std::string version_text(bool json) {
  const std::string commit = CKPT_COMMIT;
  const Build build;
  if (json) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.version/1"},
                                  {"version", CKPT_VERSION},
                                  {"commit", commit},
                                  {"image_format", store::kImageFormat},
                                  {"cuda_kernels", build.kernels},
                                  {"linked", build.linked_statically ? "statically" : "dynamically"},
                                  {"gpus", !build.linked_statically},
                                  {"nftables", !build.linked_statically},
                                  {"codecs", kCodecs}};
    return doc.dump() + "\n";
  }
  return fmt::format("ckpt {} ({}image format {}, CUDA kernels: {})\n{}\ncodecs: {}\n", CKPT_VERSION,
                     commit.empty() ? "" : commit + ", ", store::kImageFormat, build.kernels ? "yes" : "no",
                     linkage_text(build), fmt::join(kCodecs, ", "));
}

std::string short_version() {
  const std::string commit = CKPT_COMMIT;
  return std::string("ckpt ") + CKPT_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace ckpt::cli
