#include "lib/engine/gpu_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

using FilesOf = std::map<int, std::set<std::string>>;  // by pid

FilesOf files_that_stay(const capture::Inventory& inventory, const DeviceHold& devices) {
  FilesOf out;
  for (size_t i = 0; i < inventory.gpu_files.size(); ++i) {
    const int pid = inventory.image.processes[i].pid;
    const auto& hazards = devices.hazards();  // those are told already
    const bool told =
        std::any_of(hazards.begin(), hazards.end(), [&](const auto& hazard) { return hazard.pid == pid; });
    if (!inventory.gpu_files[i].empty() && !told && !devices.holds(pid)) out[pid] = inventory.gpu_files[i];
  }
  return out;
}

}  // namespace

Result<std::vector<capture::Blocker>> find_gpu_files_that_stay(int root, const capture::InventoryOptions& options,
                                                               const capture::Inventory& running,
                                                               const DeviceHold& devices) {
  constexpr int kLooks = 3;
  constexpr unsigned kPauseUs = 10'000;
  FilesOf found = files_that_stay(running, devices);
  for (int look = 1; look < kLooks && !found.empty(); ++look) {
    ::usleep(kPauseUs << look);
    std::vector<capture::Member> members;
    CKPT_TRY_ASSIGN(const capture::Inventory again, capture::look_at_running(root, members, options));
    const FilesOf still = files_that_stay(again, devices);
    std::erase_if(found, [&](const auto& process) { return still.count(process.first) == 0; });
  }
  std::vector<capture::Blocker> out;
  for (const auto& [pid, files] : found) {
    out.push_back({proc::describe_pid(pid),
                   fmt::format("memory or descriptors of a GPU ({}), which the driver takes only from processes that "
                               "use CUDA themselves: a child forked after the start of CUDA keeps its parent's",
                               fmt::join(files, ", ")),
                   ""});
  }
  return out;
}

}  // namespace ckpt::engine
