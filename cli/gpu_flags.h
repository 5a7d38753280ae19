// Flags on GPUs, and the driver that the engine uses.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/engine/device_hold.h"

namespace ckpt::cli {

struct GpuFlags {
  std::string policy = "auto";
  std::string delta = "copy";
  double lock_timeout_s = 10;
  std::vector<std::string> map;  ///< OLD=NEW
};
/// --gpu; what it means differs from verb to verb.
void add_gpu_flag(VerbOptions& app, GpuFlags& flags, const std::string& meaning);
void add_gpu_lock_timeout_flag(VerbOptions& app, GpuFlags& flags);
void add_gpu_map_flag(VerbOptions& app, GpuFlags& flags);
void add_delta_flag(VerbOptions& app, GpuFlags& flags);
/// kUsage: a value that is not understood.
Result<engine::GpuOptions> gpu_options(const GpuFlags& flags);

}  // namespace ckpt::cli
