#include "lib/engine/gpu_processes.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "lib/engine/gpu_hazards.h"
#include "lib/engine/suspend.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

using Agent = GpuProcess::Agent;
using device::ProcessState;

void ask_agent(GpuProcess& process, const GpuOptions& options) {
  if (!options.connect) return;
  auto agent = options.connect(process.pid, 0);
  if (!agent) {
    if (agent.error().code != Code::kNotFound)
      process.agent = Agent::kSilent;
    else if (lacks_agent(process.pid, options))
      process.agent = Agent::kMissing;
    return;
  }
  process.agent = Agent::kThere;
  process.contexts = (*agent)->contexts().value_or({});
  std::sort(process.contexts.begin(), process.contexts.end());
  for (const device::Allocation& allocation : (*agent)->allocations().value_or({}))
    process.owned_bytes += allocation.kind == device::MemoryKind::kOwned ? allocation.size : 0;
}

std::optional<std::vector<store::GpuUse>> memory_of(device::ProcessControl& control, int pid, ProcessState state) {
  if (state == ProcessState::kCheckpointed) {
    std::vector<store::GpuUse> noted = needed_to_resume(pid);
    return noted.empty() ? std::nullopt : std::optional(std::move(noted));
  }
  auto shares = control.memory_of(pid);
  if (!shares) return std::nullopt;
  std::vector<store::GpuUse> out;
  for (device::GpuShare& share : *shares) out.push_back({std::move(share.uuid), std::move(share.name), share.bytes});
  return out;
}

}  // namespace

uint64_t GpuProcess::bytes() const {
  uint64_t sum = 0;
  for (const store::GpuUse& use : memory.value_or(std::vector<store::GpuUse>())) sum += use.bytes;
  return sum;
}

const char* name_of(ProcessState state) {
  switch (state) {
    case ProcessState::kNone:
      return "none";
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kLocked:
      return "locked";
    case ProcessState::kCheckpointed:
      return "suspended";
    case ProcessState::kFailed:
      return "failed";
  }
  return "unknown";
}

const char* name_of(Agent agent) {
  switch (agent) {
    case Agent::kNone:
      return "none";
    case Agent::kThere:
      return "there";
    case Agent::kSilent:
      return "silent";
    case Agent::kMissing:
      return "missing";
  }
  return "unknown";
}

Result<std::vector<GpuProcess>> look_at_gpu_processes(const std::vector<int>& pids, const GpuOptions& options) {
  std::vector<GpuProcess> out;
  std::unique_ptr<device::ProcessControl> control;
  for (int pid : pids) {
    if (!may_use_gpu(pid)) continue;
    if (!control) {
      auto opened = options.open ? options.open() : fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
      if (!opened && !has_gpu_memory(pid)) continue;  // the library alone
      if (!opened) return std::move(opened).error();
      control = std::move(*opened);
    }
    GpuProcess process;
    process.pid = pid, process.name = proc::describe_pid(pid);
    process.hazards = gpu_hazards(pid, options);
    // Of some of those that cannot be checkpointed a question to the driver would hang.
    auto state = process.hazards.empty() ? control->state(pid) : Result<ProcessState>(ProcessState::kRunning);
    if (!state) process.hazards.push_back(state.error().message);
    process.state = state.value_or(ProcessState::kRunning);
    if (process.state == ProcessState::kNone) continue;
    ask_agent(process, options);
    process.memory = memory_of(*control, pid, process.state);
    out.push_back(std::move(process));
  }
  return out;
}

std::vector<int> processes_that_may_use_gpus() {
  std::vector<int> out;
  std::error_code ec;
  for (std::filesystem::directory_iterator at("/proc", ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    int pid = 0;
    auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && rest == name.data() + name.size() && may_use_gpu(pid)) out.push_back(pid);
  }
  std::sort(out.begin(), out.end());
  return out;
}

uint64_t expected_move_us(uint64_t bytes) {
  constexpr uint64_t kBytesPerUs = 8'000;
  return bytes / kBytesPerUs;
}

}  // namespace ckpt::engine
