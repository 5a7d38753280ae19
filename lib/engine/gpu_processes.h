// Processes with GPU state, as an operator asks for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/device_hold.h"

namespace ckpt::engine {

struct GpuProcess {
  enum class Agent {
    kNone,  ///< it was not started by `ckpt run`
    kThere,
    kSilent,   ///< there, and talking to another ckpt, or standing still
    kMissing,  ///< it was started by `ckpt run`, and nobody answers
  };
  int pid = 0;
  std::string name;  ///< "4711 (python3)"
  device::ProcessState state = device::ProcessState::kNone;
  Agent agent = Agent::kNone;
  std::vector<int> contexts;  ///< their devices, as the process numbers them; an agent tells
  /// Device memory that it has; of a suspended one what it needs to be resumed. Nothing: it is not told.
  std::optional<std::vector<store::GpuUse>> memory;
  uint64_t owned_bytes = 0;  ///< of it, what an agent owns: ckpt copies that itself in dump and pre-dump
  std::vector<std::string> hazards;

  uint64_t bytes() const;
};

const char* name_of(device::ProcessState state);
const char* name_of(GpuProcess::Agent agent);

/// Those of `pids` that have GPU state, suspended and locked ones among them. Nothing is held or changed. kUnsupported:
/// no driver that can checkpoint processes, though one of them uses a GPU.
Result<std::vector<GpuProcess>> look_at_gpu_processes(const std::vector<int>& pids, const GpuOptions& options);

/// Of this machine, as far as this user may look into them.
std::vector<int> processes_that_may_use_gpus();

/// How long the driver takes to move so much, by what has been published of drivers so far: 8 GB/s.
uint64_t expected_move_us(uint64_t bytes);

}  // namespace ckpt::engine
