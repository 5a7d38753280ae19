#include "lib/engine/check.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/unique_fd.h"
#include "lib/engine/gpu_files.h"
#include "lib/proc/host.h"
#include "lib/proc/landlock.h"
#include "lib/proc/procfs.h"
#include "lib/state/landlock/capture.h"

namespace ckpt::engine {

bool may_restore() {
  return proc::has_capability_over("pid", CAP_CHECKPOINT_RESTORE) || proc::has_capability_over("pid", CAP_SYS_ADMIN);
}

std::string why_not_restored() {
  if (!proc::has_capability(CAP_SYS_ADMIN)) return "this user could not restore it here (CAP_CHECKPOINT_RESTORE)";
  return "this user could not restore it here but with --new-pidns: the pid namespace belongs to a user namespace "
         "outside of ckpt's";
}

namespace {

/// Where the user is the same, the kernel may say no all the same.
Result<void> check_access(int pid, const std::string& folder) {
  UniqueFd auxv(::open((folder + "/auxv").c_str(), O_RDONLY | O_CLOEXEC));
  if (auxv || (errno != EACCES && errno != EPERM)) return {};
  return Error(Code::kPermission, "process " + std::to_string(pid),
               "may not be looked into by this user: it does not let itself be dumped (PR_SET_DUMPABLE, or a program "
               "that the user may not read), or has groups, capabilities or a user namespace that ckpt lacks")
      .with_hint("CAP_SYS_PTRACE over its user namespace looks into any process");
}

std::string name_of_user(uid_t uid) {
  passwd entry{}, *found = nullptr;
  std::vector<char> room(16384);
  const bool known = ::getpwuid_r(uid, &entry, room.data(), room.size(), &found) == 0 && found != nullptr;
  return known ? entry.pw_name : "user " + std::to_string(uid);
}

/// A dump asks the threads themselves. Where the kernel's memory cannot be read only a dump tells.
void find_landlock_domains(const std::vector<capture::Member>& members, capture::Inventory& inventory) {
  for (size_t i = 0; i < members.size() && i < inventory.image.processes.size(); ++i) {
    if (members[i].entry.zombie) continue;
    auto found = proc::is_in_landlock_domain(members[i].entry.pid, members[i].pidfd.get());
    if (found && *found) inventory.block(i, "", capture::kLandlock);
    if (found || found.error().code == Code::kNotFound) continue;
    inventory.notes.push_back("whether processes are in a Landlock domain cannot be told here: " +
                              found.error().text());
    return;
  }
}

}  // namespace

Result<void> check_process(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  struct stat st{};
  if (::stat(folder.c_str(), &st) != 0) {
    if (errno != ENOENT) return sys_error(folder, "cannot look at it");
    return fail(Code::kNotFound, "", "no process " + std::to_string(pid));
  }
  if (st.st_uid == ::geteuid() || proc::has_capability(CAP_SYS_PTRACE)) return check_access(pid, folder);
  return Error(Code::kPermission, "process " + std::to_string(pid), "belongs to " + name_of_user(st.st_uid))
      .with_hint("run ckpt as root");
}

Result<CheckReport> check(int pid, const state::ExternalOptions& external, const capture::SocketOptions& sockets,
                          const GpuOptions& gpu) {
  CheckReport report;
  report.host = host_features(gpu);
  if (pid == 0) return report;
  std::vector<capture::Member> members;
  capture::InventoryOptions options;
  options.external = external;
  options.sockets = sockets;
  options.gpus_leave = gpu.policy != GpuOptions::Policy::kOff;
  CKPT_TRY_ASSIGN(capture::Inventory inventory, capture::look_at_running(pid, members, options));
  report.process = proc::describe_pid(pid);
  find_landlock_domains(members, inventory);
  report.blockers = std::move(inventory.blockers);
  report.notes = std::move(inventory.notes);
  if (!may_restore()) {
    report.blockers.push_back({report.process,
                               why_not_restored() + ": dump does not end it",
                               "-R, -s, --force"});
  }
  std::vector<int> pids;
  for (const capture::Member& member : members) {
    if (!member.entry.zombie) pids.push_back(member.entry.pid);
  }
  DeviceHold devices(gpu);
  if (auto found = devices.find(pids); !found) {
    report.blockers.push_back({found.error().subject, found.error().message, ""});
  } else {
    CKPT_TRY_ASSIGN(const auto stay, find_gpu_files_that_stay(pid, options, inventory, devices));
    report.blockers.insert(report.blockers.end(), stay.begin(), stay.end());
  }
  for (capture::Blocker& blocker : blockers_of(devices)) report.blockers.push_back(std::move(blocker));
  for (const DeviceHold::Hazard& note : devices.new_notes())
    report.notes.push_back(proc::describe_pid(note.pid) + " " + note.what);
  report.gpu_processes = devices.pids();
  if (gpu.policy == GpuOptions::Policy::kOff) return report;
  // Without a driver the blockers say so.
  if (auto processes = look_at_gpu_processes(pids, gpu)) report.gpu = std::move(*processes);
  std::vector<GpuLoad> loads;
  for (const GpuProcess& process : report.gpu) {
    if (process.state == device::ProcessState::kRunning && process.memory)
      loads.push_back({process.pid, process.bytes() - std::min(process.bytes(), process.owned_bytes)});
  }
  report.host_room = host_room_for(loads);
  for (const HostRoom& room : report.host_room) {
    if (!room.enough()) report.blockers.push_back({report.process, no_room_for(room), ""});
  }
  return report;
}

}  // namespace ckpt::engine
