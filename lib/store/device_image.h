// Memory of accelerators in an image. The bytes are blocks of a memory space as those of host memory are; beside them lie
// the hashes that the device computed of them, so that a later image can tell by hash what it need not copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

/// Chunks, counted from the start of an allocation.
struct DeviceRun {
  uint64_t first = 0, count = 0;
  bool operator==(const DeviceRun&) const = default;
};

/// An allocation of whole chunks; a chunk is a block.
struct DeviceAllocation {
  uint64_t id = 0;            ///< what the process's agent calls it
  uint64_t address = 0, size = 0;
  std::string uuid;           ///< of the device
  uint64_t hashes_offset = 0; ///< in the image's file "pipes": 16 bytes a chunk, the lower half first
  std::vector<DeviceRun> recomputed;  ///< no bytes of them: `DeviceMemory::launches` make them again
  bool operator==(const DeviceAllocation&) const = default;
};

/// Run again, in order, after all other chunks are there.
struct DeviceLaunch {
  uint64_t sequence = 0;
  std::vector<uint8_t> record;  ///< for the process's agent; opaque
  bool operator==(const DeviceLaunch&) const = default;
};
constexpr uint64_t kDeviceHashSize = 16;
constexpr size_t kMaxLaunchRecord = 64 << 10;

/// The device memory of one process, beside what the driver put into its host memory.
struct DeviceMemory {
  int process = 0;  ///< index into TreeImage::processes
  int space = 0;    ///< of its own: no block of another kind is in it
  std::vector<DeviceAllocation> allocations;  ///< by address
  std::vector<DeviceLaunch> launches;
  bool operator==(const DeviceMemory&) const = default;
};

}  // namespace ckpt::store
