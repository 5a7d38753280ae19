#include "cli/gpu_view.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

using engine::GpuProcess;

/// "2 of GPU 0, 1 of GPU 1", as the process numbers them.
std::string contexts_text(const GpuProcess& process) {
  if (process.agent != GpuProcess::Agent::kThere) return "-";
  std::map<int, int> of_device;
  for (int device : process.contexts) ++of_device[device];
  std::string out;
  for (const auto& [device, count] : of_device)
    out += fmt::format("{}{} of GPU {}", out.empty() ? "" : ", ", count, device);
  return out.empty() ? "none" : out;
}

std::string memory_text(const GpuProcess& process) {
  if (!process.memory) return "not told";
  std::string out;
  for (const store::GpuUse& use : *process.memory)
    out += fmt::format("{}{} of {}", out.empty() ? "" : ", ", human_bytes(use.bytes), escape_for_terminal(use.uuid));
  if (process.owned_bytes != 0) out += fmt::format(" ({} the agent's)", human_bytes(process.owned_bytes));
  return out;
}

}  // namespace

void print_gpu_table(Console& out, const std::vector<GpuProcess>& processes) {
  std::vector<std::vector<std::string>> rows;
  for (const GpuProcess& process : processes) {
    rows.push_back({escape_for_terminal(process.name), engine::name_of(process.state), engine::name_of(process.agent),
                    contexts_text(process), memory_text(process)});
  }
  out.table({"PROCESS", "GPU STATE", "AGENT", "CONTEXTS", "DEVICE MEMORY"}, rows);
}

std::string gpu_processes_json(const std::vector<GpuProcess>& processes) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const GpuProcess& process : processes) {
    nlohmann::ordered_json memory;
    if (process.memory) memory = nlohmann::ordered_json::array();
    for (const store::GpuUse& use : process.memory.value_or(std::vector<store::GpuUse>()))
      memory.push_back({{"uuid", use.uuid}, {"name", use.name}, {"bytes", use.bytes}});
    out.push_back({{"pid", process.pid},
                   {"state", engine::name_of(process.state)},
                   {"agent", engine::name_of(process.agent)},
                   {"contexts", process.contexts},
                   {"memory", memory},
                   {"owned_bytes", process.owned_bytes},
                   {"hazards", process.hazards}});
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ckpt::cli
