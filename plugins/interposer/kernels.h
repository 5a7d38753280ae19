// Which handles are kernels of a library. Launches take them in place of functions, and runtimes launch nothing else,
// but the calls that ask about functions are not documented to.
#pragma once

#include "plugins/interposer/driver.h"

namespace ckpt::interposer {

bool is_kernel(CUfunction handle);

// Called instead of the driver's.
CUresult library_get_kernel(CUkernel* out, CUlibrary library, const char* name);
CUresult library_enumerate_kernels(CUkernel* out, unsigned count, CUlibrary library);
CUresult library_unload(CUlibrary library);

void reset_kernels_after_fork();

}  // namespace ckpt::interposer
