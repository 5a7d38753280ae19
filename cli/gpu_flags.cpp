#include "cli/gpu_flags.h"

#include "plugins/cuda/agent_client.h"
#include "plugins/cuda/cuda_device.h"
#include "plugins/cuda/driver.h"
#include "plugins/cuda/kernel_image.h"
#include "plugins/cuda/process_control.h"

namespace ckpt::cli {

namespace {

Result<std::unique_ptr<device::Target>> connect_to_agent(int pid, uint64_t timeout_us) {
  CKPT_TRY_ASSIGN(std::unique_ptr<cuda::AgentTarget> agent, cuda::AgentTarget::connect(pid, timeout_us));
  return std::unique_ptr<device::Target>(std::move(agent));
}

Result<std::unique_ptr<device::Device>> open_cuda_device(const std::string& uuid) {
  CKPT_TRY_ASSIGN(std::shared_ptr<cuda::Driver> driver, cuda::Driver::open());
  CKPT_TRY_ASSIGN(const std::string kernels, cuda::read_kernels());
  CKPT_TRY(driver->initialise());
  return cuda::open_device(std::move(driver), uuid, kernels);
}

}  // namespace

void add_gpu_flag(VerbOptions& app, GpuFlags& flags, const std::string& meaning) {
  app.add_option("--gpu", flags.policy, meaning + " (default auto)")
      .one_of({"auto", "off", "only"})
      .type_name("auto|off|only");
}

void add_gpu_lock_timeout_flag(VerbOptions& app, GpuFlags& flags) {
  app.add_option("--gpu-lock-timeout", flags.lock_timeout_s,
                 "Seconds that submitted GPU work may take to end (default 10)")
      .positive()
      .type_name("SECONDS");
}

void add_gpu_map_flag(VerbOptions& app, GpuFlags& flags) {
  app.add_option("--gpu-map", flags.map,
                 "Put the state of one GPU on another, by their UUIDs; may be given several times")
      .type_name("OLD=NEW");
}

void add_delta_flag(VerbOptions& app, GpuFlags& flags) {
  app.add_option("--delta", flags.delta,
                 "Device memory of a program under ckpt run that it wrote while it was pre-copied: copied, or made "
                 "again by its launches (default copy)")
      .one_of({"auto", "copy", "recompute"})
      .type_name("auto|copy|recompute");
}

Result<engine::GpuOptions> gpu_options(const GpuFlags& flags) {
  using Policy = engine::GpuOptions::Policy;
  using Delta = capture::DeltaMode;
  engine::GpuOptions out;
  out.policy = flags.policy == "off" ? Policy::kOff : flags.policy == "only" ? Policy::kOnly : Policy::kAuto;
  out.delta = flags.delta == "auto" ? Delta::kAuto : flags.delta == "recompute" ? Delta::kRecompute : Delta::kCopy;
  out.lock_timeout_us = static_cast<uint64_t>(flags.lock_timeout_s * 1e6);
  for (const std::string& pair : flags.map) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size())
      return fail(Code::kUsage, "--gpu-map " + pair, "is not OLD=NEW");
    out.map.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  out.open = cuda::open_process_control;
  out.connect = connect_to_agent;
  out.open_device = open_cuda_device;
  out.resume_command = {"/proc/self/exe", "resume", "--quiet"};
  return out;
}

}  // namespace ckpt::cli
