// Where GPU state goes, and whether there is room for it: on the GPUs for a restore, in host memory for a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/device/process_control.h"
#include "lib/state/gpu/record.h"

namespace ckpt::engine {

/// What the driver would move to host memory.
struct GpuLoad {
  int pid = 0;
  uint64_t bytes = 0;
};
/// What limits the host memory of some of the processes, and what they all would need of it.
struct HostRoom {
  std::string limit;  ///< as in proc::MemoryRoom
  uint64_t needed = 0, bytes = 0;
  bool enough() const { return needed <= bytes; }
};
/// For each limit that one of them is under.
std::vector<HostRoom> host_room_for(const std::vector<GpuLoad>& loads);
std::string no_room_for(const HostRoom& room);
/// kNoRoom, with both numbers.
Result<void> check_host_room(const std::vector<GpuLoad>& loads);

/// Before a restore: the driver is there, and so are the GPUs, with enough free memory. kNotFound, kNoRoom, kUsage
/// (--gpu-map), kUnsupported. Returns the pairs for ProcessControl::restore: none where nothing was mapped; else one
/// for each GPU that was there at the checkpoint, since the driver wants all of them. Those that `map` does not name
/// stay where they are, or go where another one went away from.
Result<device::GpuMap> check_gpus(device::ProcessControl& control, const store::GpuState& state,
                                  const device::GpuMap& map);

}  // namespace ckpt::engine
