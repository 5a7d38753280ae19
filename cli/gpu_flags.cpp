#include "cli/gpu_flags.h"

#include "plugins/cuda/process_control.h"

namespace ckpt::cli {

void add_gpu_flags(CLI::App& app, GpuFlags& flags) {
  app.add_option("--gpu", flags.policy, "GPU state: taken where there is some, an obstacle, or asked for (default auto)")
      ->check(CLI::IsMember({"auto", "off", "only"}))->type_name("auto|off|only");
  app.add_option("--gpu-lock-timeout", flags.lock_timeout_s, "Seconds that submitted GPU work may take to end (default 10)")
      ->check(CLI::PositiveNumber)->type_name("SECONDS");
}

void add_gpu_map_flag(CLI::App& app, GpuFlags& flags) {
  app.add_option("--gpu-map", flags.map, "Put the state of one GPU on another, by their UUIDs; may be given several times")->type_name("OLD=NEW");
}

Result<engine::GpuOptions> gpu_options(const GpuFlags& flags) {
  using Policy = engine::GpuOptions::Policy;
  engine::GpuOptions out;
  out.policy = flags.policy == "off" ? Policy::kOff : flags.policy == "only" ? Policy::kOnly : Policy::kAuto;
  out.lock_timeout_us = static_cast<uint64_t>(flags.lock_timeout_s * 1e6);
  for (const std::string& pair : flags.map) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) return fail(Code::kUsage, "--gpu-map " + pair, "is not OLD=NEW");
    out.map.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  out.open = cuda::open_process_control;
  out.resume_command = {"/proc/self/exe", "resume", "--quiet"};
  return out;
}

}  // namespace ckpt::cli
