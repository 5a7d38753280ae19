// Processes with GPU state, as check and list show them.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/engine/gpu_processes.h"

namespace ckpt::cli {

/// A table: pid and name, state, agent, contexts, device memory.
void print_gpu_table(Console& out, const std::vector<engine::GpuProcess>& processes);
/// The same as text of a JSON array.
std::string gpu_processes_json(const std::vector<engine::GpuProcess>& processes);

}  // namespace ckpt::cli
