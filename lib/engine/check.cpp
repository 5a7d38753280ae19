#include "lib/engine/check.h"

#include <linux/capability.h>
#include <unistd.h>

#include "lib/proc/host.h"
#include "lib/proc/pagemap.h"
#include "lib/proc/procfs.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

constexpr int kXcr0Tiles = 18;  // XTILEDATA

std::vector<Feature> host_features() {
  auto pagemap = proc::Pagemap::open(::getpid());
  auto host = proc::read_host();
  const bool tiles = host && (host->xcr0 >> kXcr0Tiles & 1) != 0;
  return {
      {"PAGEMAP_SCAN", pagemap && pagemap->can_scan(),
       "copying only what was written (Linux 6.7); without it every dump is a full copy"},
      {"CAP_SYS_PTRACE", proc::has_capability(CAP_SYS_PTRACE), "processes of other users"},
      {"CAP_CHECKPOINT_RESTORE", may_restore(), "restore: the old pid, the old memory bounds"},
      {"CAP_SYS_RESOURCE", proc::has_capability(CAP_SYS_RESOURCE),
       "restore: raising hard limits; without it they stay as they are"},
      {"AMX tiles", tiles, "processes that hold them can only be restored where they are"},
  };
}

Feature gpu_feature(const GpuOptions& gpu) {
  auto control = gpu.open ? gpu.open() : fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
  Feature out{"CUDA checkpoints", control.has_value(), "processes with a GPU"};
  out.serves += control ? " (" + (*control)->version() + ")" : ": " + control.error().text();
  return out;
}

}  // namespace

bool may_restore() { return proc::has_capability(CAP_CHECKPOINT_RESTORE) || proc::has_capability(CAP_SYS_ADMIN); }

Result<CheckReport> check(int pid, bool shell_job, const capture::SocketOptions& sockets, const GpuOptions& gpu) {
  CheckReport report;
  report.host = host_features();
  report.host.push_back(gpu_feature(gpu));
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
