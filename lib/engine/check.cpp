#include "lib/engine/check.h"

#include <linux/capability.h>
#include <unistd.h>

#include "lib/proc/host.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

bool may_restore() { return proc::has_capability(CAP_CHECKPOINT_RESTORE) || proc::has_capability(CAP_SYS_ADMIN); }

Result<CheckReport> check(int pid, bool shell_job, const capture::SocketOptions& sockets, const GpuOptions& gpu) {
  CheckReport report;
  report.host = host_features(gpu);
  if (pid == 0) return report;
  std::vector<capture::Member> members;
  capture::InventoryOptions options;
  options.shell_job = shell_job;
  options.sockets = sockets;
  options.gpus_leave = gpu.policy != GpuOptions::Policy::kOff;
  CKPT_TRY_ASSIGN(capture::Inventory inventory, capture::look_at_running(pid, members, options));
  report.process = proc::describe_pid(pid);
  report.blockers = std::move(inventory.blockers);
  if (!may_restore()) {
    report.blockers.push_back({report.process, "this user could not restore it here (CAP_CHECKPOINT_RESTORE): dump does not end it", "-R, -s, --force"});
  }
  std::vector<int> pids;
  for (const capture::Member& member : members) {
    if (!member.entry.zombie) pids.push_back(member.entry.pid);
  }
  DeviceHold devices(gpu);
  if (auto found = devices.find(pids); !found) report.blockers.push_back({found.error().subject, found.error().message, ""});
  for (capture::Blocker& blocker : blockers_of(devices)) report.blockers.push_back(std::move(blocker));
  report.gpu_processes = devices.pids();
  return report;
}

}  // namespace ckpt::engine
