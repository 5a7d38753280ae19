// The device kernels as this build has them.
#pragma once

#include <string>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::cuda {

/// A fatbin for sm_80 to sm_100 with PTX for what comes later; empty where nvcc was not there at build time.
ByteSpan built_in_kernels();
/// The file that CKPT_CUDA_KERNELS names (a fatbin, cubin or PTX with the kernels of kernels.h), else the built-in
/// ones. Ends with a zero byte, as the driver wants PTX; empty: there are none.
Result<std::string> read_kernels();

}  // namespace ckpt::cuda
