#include "lib/engine/gpu_hazards.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "lib/base/io.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

/// NCCL names the threads that serve a communicator ("NCCL Service 0", "NCCL Progress 1"); the library alone, which
/// PyTorch always loads, is no hazard. GetState itself hangs for such processes (NVIDIA/cuda-checkpoint issues 30 and
/// 45).
std::string nccl_thread(int pid) {
  auto tids = proc::read_threads(pid);
  for (int tid : tids.value_or({})) {
    auto stat = proc::read_thread_stat(pid, tid);
    if (stat && stat->comm.rfind("NCCL ", 0) == 0) return stat->comm;
  }
  return "";
}

/// Of the environment that the process began with; empty: not set.
std::string variable(int pid, std::string_view name) {
  constexpr uint64_t kMost = 4 << 20;
  auto text = io::read_file(fmt::format("/proc/{}/environ", pid), kMost);
  if (!text) return "";
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\0', at), text->size());
    const std::string_view entry = std::string_view(*text).substr(at, end - at);
    if (entry.size() > name.size() && entry.substr(0, name.size()) == name && entry[name.size()] == '=')
      return std::string(entry.substr(name.size() + 1));
    at = end + 1;
  }
  return "";
}

/// Where an MPS daemon listens, every program that starts becomes its client.
bool uses_mps(int pid) {
  const std::string named = variable(pid, "CUDA_MPS_PIPE_DIRECTORY");
  std::error_code ec;
  return std::filesystem::exists(std::filesystem::path(named.empty() ? "/tmp/nvidia-mps" : named) / "control", ec);
}

/// A part of a GPU is named by its UUID, or was taken through its capability file.
bool uses_mig(int pid) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}) {
    if (variable(pid, name).find("MIG-") != std::string::npos) return true;
  }
  std::error_code ec;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", pid), ec), end; !ec && at != end;
       at.increment(ec)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(at->path(), gone).string().rfind("/dev/nvidia-caps/nvidia-cap", 0) == 0)
      return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> gpu_hazards(int pid, const GpuOptions& options) {
  std::vector<std::string> out;
  if (const std::string thread = nccl_thread(pid); !thread.empty())
    out.push_back(
        fmt::format("an NCCL communicator (thread {}), on which the driver's checkpoints hang: end it before "
                    "(destroy_process_group)",
                    thread));
  if (uses_mps(pid)) out.push_back("a client of MPS (the Multi-Process Service), which the driver cannot checkpoint");
  if (uses_mig(pid)) out.push_back("a MIG instance (a part of a GPU), which the driver cannot checkpoint");
  // CUPTI is not supported (NVIDIA/cuda-checkpoint issue 15). PyTorch loads its library always: that alone says
  // nothing.
  if (const std::string profiler = variable(pid, "CUDA_INJECTION64_PATH"); !profiler.empty())
    out.push_back(
        fmt::format("an injected profiler (CUDA_INJECTION64_PATH={}), with which the driver cannot "
                    "checkpoint",
                    profiler));
  if (!options.connect) return out;
  auto agent = options.connect(pid, 0);
  if (!agent) return out;
  auto more = (*agent)->hazards();
  for (std::string& hazard : more.value_or({})) out.push_back(std::move(hazard));
  return out;
}

bool lacks_agent(int pid, const GpuOptions& options) {
  if (!options.connect || variable(pid, "LD_PRELOAD").find("libckpt-cuda.so") == std::string::npos) return false;
  auto agent = options.connect(pid, 0);
  return !agent && agent.error().code == Code::kNotFound;
}

}  // namespace ckpt::engine
