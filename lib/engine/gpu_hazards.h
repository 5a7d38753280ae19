// What the driver's checkpoints of processes cannot carry, or hang on, as far as it can be seen beforehand.
#pragma once

#include <string>
#include <vector>

#include "lib/engine/device_hold.h"

namespace ckpt::engine {

/// One sentence each: "an NCCL communicator (thread NCCL Service 0), ...". Nothing is asked of the driver. What an
/// agent knows of its process (`ckpt run`) is known here; of others managed memory and IPC cannot be seen from outside.
std::vector<std::string> gpu_hazards(int pid, const GpuOptions& options);

/// A process that `ckpt run` started and that uses CUDA, in which nobody answers: there was no thread or no socket for
/// the agent, or what was to be preloaded was not.
bool lacks_agent(int pid, const GpuOptions& options);

}  // namespace ckpt::engine
