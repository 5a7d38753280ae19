// The seam's device over the CUDA driver.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/device/device.h"
#include "plugins/cuda/driver.h"

namespace ckpt::cuda {

/// The device of that UUID (empty: the first), with ckpt's primary context on it. kNotFound: no such device. `kernels`:
/// see kernel_image.h; where they are empty, or none of them is for this device, its streams' hash and copy_and_hash
/// are kUnsupported, and the rest works.
Result<std::unique_ptr<device::Device>> open_device(std::shared_ptr<Driver> driver, const std::string& uuid,
                                                    const std::string& kernels);

}  // namespace ckpt::cuda
