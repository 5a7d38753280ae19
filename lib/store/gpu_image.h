// What an image says of GPUs. The device state itself is in the processes' memory: the driver moved it there before the
// image was taken, and takes it from there at the restore.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

struct GpuUse {
  std::string uuid, name;
  uint64_t bytes = 0;  ///< device memory that became free when the processes let go of it: what a restore will take again
  bool operator==(const GpuUse&) const = default;
};

/// Of a tree. `driver` is empty where no process of it had a device.
struct GpuState {
  std::string driver;  ///< ProcessControl::version of the driver that took the checkpoint
  std::vector<GpuUse> used;
  bool operator==(const GpuState&) const = default;
};

}  // namespace ckpt::store
