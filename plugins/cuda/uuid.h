// UUIDs of GPUs as people write them.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/result.h"
#include "plugins/cuda/driver_api.h"

namespace ckpt::cuda {

/// "GPU-8a0c1f5e-...", as nvidia-smi prints it.
std::string uuid_text(const api::CUuuid& uuid);
/// kUsage: not of that form; the "GPU-" may be missing.
Result<api::CUuuid> parse_uuid(std::string_view text);

}  // namespace ckpt::cuda
