// The GPUs of this machine and how much of each is free.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/device/process_control.h"
#include "plugins/cuda/driver.h"

namespace ckpt::cuda {

/// Asks NVML, which holds nothing on the device. Where that is not there, through contexts of ckpt's own (some 300 MiB
/// on each GPU), made at the first question and kept, so that differences between two answers are true.
class MemoryInfo {
 public:
  explicit MemoryInfo(Driver& driver) : driver_(driver) {}
  ~MemoryInfo();
  MemoryInfo(const MemoryInfo&) = delete;
  MemoryInfo& operator=(const MemoryInfo&) = delete;

  Result<std::vector<device::Gpu>> gpus();
  /// NVML alone tells. kUnsupported: it is not there, or knows of no such process (it tells pids of its own namespace,
  /// and in some containers none).
  Result<std::vector<device::GpuShare>> of_process(int pid);

 private:
  struct Device {
    device::Gpu gpu;
    api::CUdevice device = 0;
    api::CUcontext context = nullptr;
    void* nvml = nullptr;
  };
  Result<void> find();
  Result<void> ask_context(Device& device);

  Driver& driver_;
  std::vector<Device> devices_;
};

}  // namespace ckpt::cuda
