// What the driver-API programs begin with: the driver, loaded as programs load it, their kernels, and the harness of
// self-checking targets (tests/kernel/target.h).
#pragma once

#define _Noreturn [[noreturn]]
extern "C" {
#include "tests/kernel/target.h"
}
#undef _Noreturn

#include <dlfcn.h>

#include <vector>

#include "plugins/cuda/driver_api.h"
#include "tests/device/driver/standin.h"
#include "tests/device/programs/kernels.h"

using namespace ckpt::cuda::api;

struct DriverTable {
#define CKPT_CUDA(name, parameters) CUresult(*name) parameters;
#include "plugins/cuda/driver_functions.inc"
};
extern DriverTable cu;

/// Fails with the call and what the driver said.
#define CU(call)                                                                                            \
  do {                                                                                                      \
    CUresult result_ = cu.call;                                                                             \
    if (result_ != CUDA_SUCCESS) target_fail("%s:%d: %s: %d", __FILE_NAME__, __LINE__, #call, (int)result_); \
  } while (0)
/// Also on the way to `ready`, where the machine may lack something.
#define CU_OR_SKIP(call)                                                         \
  do {                                                                           \
    CUresult result_ = cu.call;                                                  \
    if (result_ != CUDA_SUCCESS) target_skip("%s: %d", #call, (int)result_);     \
  } while (0)

/// Loads the driver without a call to it. Skips where there is none.
void driver_load();
/// cuInit, and the primary context of a device made current.
CUcontext driver_start(int ordinal = 0);
/// The programs' kernels in the current context.
CUmodule kernels_load();
CUfunction kernel(CUmodule module, const char* name);
/// The same as a library, whose kernels are launched without their functions: so does the CUDA runtime since 12.
CUlibrary library_load();
CUfunction library_kernel(CUlibrary library, const char* name);
void launch(CUfunction function, CUstream stream, std::vector<void*> params, unsigned blocks = 64,
            unsigned threads = 256);

/// Words in device memory: filled by a kernel, counted where they are wrong.
struct Words {
  CUfunction fill = nullptr, verify = nullptr;
  CUdeviceptr wrong = 0;
  explicit Words(CUmodule module);
  void write(CUdeviceptr at, size_t bytes, uint64_t seed, CUstream stream = nullptr) const;
  void check(CUdeviceptr at, size_t bytes, uint64_t seed) const;
};
