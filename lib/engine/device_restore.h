// The GPUs' part of a restore: state that the driver puts back while the processes are frozen, then the memory of
// programs under `ckpt run`, once they run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/engine/device_hold.h"
#include "lib/store/image.h"

namespace ckpt::engine {

class DeviceRestore {
 public:
  /// Says what is in the way before anything is made: no driver, not these GPUs, not enough memory.
  static Result<DeviceRestore> prepare(const store::TreeImage& tree, const GpuOptions& options);
  /// The image has no GPU state, or it is to stay where it is.
  bool empty() const { return control_ == nullptr; }

  /// The processes are frozen; of each only the thread that serves the driver runs, and it is stopped again
  /// afterwards. On a failure they have let go of their devices again.
  Result<void> run();
  /// The processes run. On a failure they have been ended: without their memory they would wait for ever.
  Result<void> fill(const store::ImageReader& image, bool lazy, const Cancel& cancel);

 private:
  using Run = std::function<Result<void>(size_t index, const std::function<Result<void>()>& work)>;
  DeviceRestore(const store::TreeImage& tree, const GpuOptions& options);
  void let_go(const Run& run);

  const GpuOptions* options_;
  std::unique_ptr<device::ProcessControl> control_;
  device::GpuMap map_;
  std::vector<int> all_, pids_, threads_;  ///< every process; those with GPU state, and their threads for the driver
};

}  // namespace ckpt::engine
