// How much more host memory a process can have before something is killed for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::proc {

/// What limits it: the machine, or a memory cgroup of the process or above it.
struct MemoryRoom {
  std::string limit;  ///< "this machine (MemAvailable)", "/sys/fs/cgroup/job (memory.max)"
  uint64_t bytes = 0;
};
/// Those that can be read; page cache that can be dropped counts as room.
std::vector<MemoryRoom> read_memory_room(int pid);

}  // namespace ckpt::proc
