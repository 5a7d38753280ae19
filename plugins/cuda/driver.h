// The CUDA driver, loaded at run time: nothing links to it, and a machine without one is told so.
#pragma once

#include <memory>
#include <string>

#include "lib/base/result.h"
#include "plugins/cuda/driver_api.h"

namespace ckpt::cuda {

/// Entry points by name; null where the driver is older than they are.
namespace api {
struct Functions {
#define CKPT_CUDA(name, parameters) CUresult(*name) parameters = nullptr;
#include "plugins/cuda/driver_functions.inc"
};
}  // namespace api

class Driver {
 public:
  /// CKPT_CUDA_DRIVER, or libcuda.so.1 as the loader finds it. kUnsupported: there is none. Loaded once, never
  /// unloaded.
  static Result<std::shared_ptr<Driver>> open();

  const api::Functions& call() const { return functions_; }
  /// cuInit, once: it takes up to some seconds on a real machine.
  Result<void> initialise();
  /// Of the driver, as it tells: 13000 is CUDA 13.0.
  int cuda_version() const { return cuda_version_; }
  /// "driver 580.95.05, CUDA 13.0"; the first part only where the kernel module tells it.
  std::string version() const;
  /// An Error where `result` is one: "message: CUDA_ERROR_OUT_OF_MEMORY (out of memory)". OUT_OF_MEMORY is kNoRoom,
  /// NOT_READY and TIMEOUT kBusy, NOT_SUPPORTED kUnsupported, NOT_PERMITTED kPermission, the rest kIo.
  Result<void> check(api::CUresult result, std::string subject, std::string message) const;

 private:
  Driver() = default;
  api::Functions functions_;
  int cuda_version_ = 0;
  bool initialised_ = false;
};

}  // namespace ckpt::cuda
