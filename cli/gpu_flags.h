// Flags on GPUs, and the driver that the engine uses.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/engine/device_hold.h"

namespace ckpt::cli {

struct GpuFlags {
  std::string policy = "auto";
  double lock_timeout_s = 10;
  std::vector<std::string> map;  ///< OLD=NEW
};
/// --gpu and --gpu-lock-timeout.
void add_gpu_flags(CLI::App& app, GpuFlags& flags);
/// --gpu-map.
void add_gpu_map_flag(CLI::App& app, GpuFlags& flags);
/// kUsage: a value that is not understood.
Result<engine::GpuOptions> gpu_options(const GpuFlags& flags);

}  // namespace ckpt::cli
