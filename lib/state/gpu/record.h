// GPUs: what the driver moved to host memory, and device memory that ckpt copied itself.
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

struct DeviceRange {
  uint64_t address = 0, size = 0;
  bool operator==(const DeviceRange&) const = default;
};

/// Run again, in order, after all other chunks are there.
struct DeviceLaunch {
  uint64_t sequence = 0;
  std::vector<uint8_t> record;  ///< for the process's agent; opaque
  std::string name;             ///< of the kernel or the driver's function; none in older images, as the two below
  std::vector<DeviceRange> reads, writes;  ///< what it may read and write, as its arguments say: for people
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

struct GpuUse {
  std::string uuid, name;
  uint64_t bytes =
      0;  ///< device memory that became free when the processes let go of it: what a restore will take again
  bool operator==(const GpuUse&) const = default;
};

/// Of a tree. `driver` is empty where no process of it had a device.
struct GpuState {
  std::string driver;  ///< ProcessControl::version of the driver that took the checkpoint
  std::vector<GpuUse> used;
  std::vector<std::string> present;  ///< the UUIDs of all devices that the driver knew of; none in older images
  bool operator==(const GpuState&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<DeviceRun> r) {
  a.number("first", r.first);
  a.number("count", r.count);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceAllocation> d) {
  a.number("id", d.id);
  a.hex("address", d.address);
  a.number("size", d.size);
  a.text("uuid", d.uuid);
  a.number("hashes_offset", d.hashes_offset);
  a.list("recomputed", d.recomputed);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceRange> r) {
  a.hex("address", r.address);
  a.number("size", r.size);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceLaunch> l) {
  a.number("sequence", l.sequence);
  a.octets("record", l.record, 0, kMaxLaunchRecord);
  a.optional().text("name", l.name);
  a.optional().list("reads", l.reads);
  a.optional().list("writes", l.writes);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceMemory> d) {
  a.number("process", d.process, 0);
  a.number("space", d.space, 0, (1 << 16) - 1);
  a.list("allocations", d.allocations);
  a.list("launches", d.launches);
}

}  // namespace ckpt::store
