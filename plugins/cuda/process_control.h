// device::ProcessControl over cuCheckpointProcess*.
#pragma once

#include <memory>

#include "lib/device/process_control.h"

namespace ckpt::cuda {

/// kUnsupported: no driver here, or one older than CUDA 12.8 (driver 570).
Result<std::unique_ptr<device::ProcessControl>> open_process_control();

}  // namespace ckpt::cuda
