#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/app.h"
#include "lib/store/features.h"
#include "plugins/cuda/kernel_image.h"

#ifndef CKPT_COMMIT
#define CKPT_COMMIT ""
#endif

namespace ckpt::cli {

std::string version_text(bool json) {
  const std::string commit = CKPT_COMMIT;
  const bool kernels = !cuda::built_in_kernels().empty();
  if (json) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.version/1"}, {"version", CKPT_VERSION}, {"commit", commit}, {"image_format", store::kImageFormat}, {"cuda_kernels", kernels}};
    return doc.dump() + "\n";
  }
  return fmt::format("ckpt {} ({}image format {}, CUDA kernels: {})\n", CKPT_VERSION, commit.empty() ? "" : commit + ", ", store::kImageFormat, kernels ? "yes" : "no");
}

}  // namespace ckpt::cli
