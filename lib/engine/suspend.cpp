#include "lib/engine/suspend.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/gpu_room.h"
#include "lib/engine/owned_memory.h"
#include "lib/engine/renewal.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

/// What a suspended process will need is written down, for the driver does not tell: a restore that fails for want of
/// memory leaves the process stuck for good with some drivers (580.95, NVIDIA/cuda-checkpoint issue 44).
class Notes {
 public:
  static void write(int pid, const std::vector<store::GpuUse>& used) {
    std::error_code ec;
    std::filesystem::create_directories(folder(), ec);
    nlohmann::json doc = nlohmann::json::array();
    for (const store::GpuUse& use : used) doc.push_back({{"uuid", use.uuid}, {"name", use.name}, {"bytes", use.bytes}});
    (void)io::write_file(path(pid), doc.dump());
  }
  static std::vector<store::GpuUse> read(int pid) {
    constexpr uint64_t kMost = 1 << 20;
    std::vector<store::GpuUse> out;
    auto text = io::read_file(path(pid), kMost);
    const nlohmann::json doc = text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
    if (!doc.is_array()) return out;
    for (const auto& use : doc) {
      if (!use.is_object() || !use.contains("uuid") || !use["uuid"].is_string() || !use.contains("bytes") ||
          !use["bytes"].is_number_unsigned())
        continue;
      out.push_back({use["uuid"], "", use["bytes"]});
    }
    return out;
  }
  static void remove(int pid) { ::unlink(path(pid).c_str()); }

 private:
  static std::filesystem::path folder() {
    const char* of_user = std::getenv("XDG_RUNTIME_DIR");
    return ::geteuid() == 0 || of_user == nullptr ? "/run/ckpt/suspended"
                                                  : std::filesystem::path(of_user) / "ckpt" / "suspended";
  }
  static std::filesystem::path path(int pid) {
    auto stat = proc::read_stat(pid);
    return folder() / fmt::format("{}-{}", pid, stat ? stat->start_time : 0);
  }
};

Result<std::vector<int>> members_of(int pid) {
  CKPT_TRY_ASSIGN(std::vector<proc::TreeEntry> tree, proc::read_tree(pid));
  std::vector<int> out;
  for (const proc::TreeEntry& entry : tree) {
    if (!entry.zombie) out.push_back(entry.pid);
  }
  return out;
}

}  // namespace

std::vector<store::GpuUse> needed_to_resume(int pid) { return Notes::read(pid); }

namespace {

struct Suspended {
  int pid = 0;
  device::ProcessState state = device::ProcessState::kNone;
};

/// Those that wait for a `resume`.
Result<std::vector<Suspended>> find_suspended(device::ProcessControl& control, const std::vector<int>& roots) {
  std::vector<Suspended> out;
  for (int root : roots) {
    CKPT_TRY_ASSIGN(std::vector<int> members, members_of(root));
    for (int pid : members) {
      if (!may_use_gpu(pid)) continue;
      CKPT_TRY_ASSIGN(const device::ProcessState state, control.state(pid));
      if (state == device::ProcessState::kFailed)
        return fail(Code::kUnsupported, proc::describe_pid(pid),
                    "its GPU state has failed and cannot be brought back: it can only be ended");
      if (state == device::ProcessState::kCheckpointed || state == device::ProcessState::kLocked)
        out.push_back({pid, state});
    }
  }
  return out;
}

/// What all of them need together.
store::GpuState needed(const std::vector<Suspended>& processes) {
  store::GpuState out;
  for (const Suspended& process : processes) {
    for (const store::GpuUse& use : Notes::read(process.pid)) {
      auto same = std::find_if(out.used.begin(), out.used.end(),
                               [&](const store::GpuUse& other) { return other.uuid == use.uuid; });
      if (same == out.used.end()) out.used.push_back(use);
      else same->bytes += use.bytes;
    }
  }
  return out;
}

/// After a call that failed: another resume of the same process, such as that of a guard, may have been faster.
bool is_still(device::ProcessControl& control, int pid, device::ProcessState state) {
  auto now = control.state(pid);
  return !now || *now == state || *now == device::ProcessState::kFailed;
}

/// Another resume may also hold a process locked for a moment, to see that no call for it is under way (`settle`).
Result<void> unlock(device::ProcessControl& control, int pid) {
  constexpr int kTries = 20;
  constexpr auto kPause = std::chrono::milliseconds(50);
  Result<void> done;
  for (int i = 0; i < kTries; ++i) {
    if (i != 0) std::this_thread::sleep_for(kPause);
    done = control.unlock(pid);
    if (done || !is_still(control, pid, device::ProcessState::kLocked)) return {};
  }
  return done;
}

Error stays_suspended(Error error, int pid) {
  if (error.target_state.empty()) error.target_state = "suspended, as it was";
  if (error.hint.empty()) error.hint = fmt::format("`ckpt resume -p {}` tries again", pid);
  return error;
}

}  // namespace

namespace {

/// Those of the trees that have GPU state. kNotFound: one of the trees has none.
Result<void> find_running(DeviceHold& devices, const std::vector<int>& roots, const char* what) {
  std::set<int> all;
  for (int root : roots) {
    CKPT_TRY_ASSIGN(const std::vector<int> members, members_of(root));
    CKPT_TRY(devices.find(members));
    if (!devices.hazards().empty()) return Error(capture::blocked_error(root, blockers_of(devices)));
    if (devices.empty())
      return fail(Code::kNotFound, proc::describe_pid(root), fmt::format("has no GPU state that could be {}", what));
    all.insert(members.begin(), members.end());
  }
  return devices.find({all.begin(), all.end()});
}

}  // namespace

Result<SuspendReport> suspend(const std::vector<int>& pids, const GpuOptions& options, const Cancel& cancel) {
  DeviceHold devices(options);
  CKPT_TRY(find_running(devices, pids, "suspended"));
  SuspendReport out;
  for (const DeviceHold::Hazard& note : devices.new_notes())
    out.notes.push_back(proc::describe_pid(note.pid) + " " + note.what);
  CKPT_TRY(devices.look([](int) { return 0; }));
  CKPT_TRY(cancel.check());
  Stopwatch watch;
  auto as_it_was = [&](Result<void> done) -> Result<void> {
    if (done) return done;
    CKPT_TRY(devices.give_back(nullptr));
    return Error(std::move(done).error()).with_target("running, as it was");
  };
  CKPT_TRY(as_it_was(renew_memory(devices.pids(), options)));
  CKPT_TRY(as_it_was(devices.lock()));
  out.lock_us = watch.lap_us();
  CKPT_TRY(as_it_was(devices.checkpoint(nullptr)));
  out.checkpoint_us = watch.lap_us();
  out.pids = devices.pids();
  out.state = devices.state();
  // All that became free counts for the first: each is resumed alone or with the others, and then the sum is what
  // matters.
  for (size_t i = 0; i < out.pids.size(); ++i)
    Notes::write(out.pids[i], i == 0 ? out.state.used : std::vector<store::GpuUse>());
  devices.forget();
  return out;
}

Result<LockReport> lock_gpus(const std::vector<int>& pids, const GpuOptions& options, const Cancel& cancel) {
  DeviceHold devices(options);
  CKPT_TRY(find_running(devices, pids, "locked"));
  CKPT_TRY(cancel.check());
  Stopwatch watch;
  if (auto locked = devices.lock(); !locked) return Error(std::move(locked).error()).with_target("running, as it was");
  LockReport out{devices.pids(), watch.lap_us()};
  devices.forget();
  return out;
}

Result<LockReport> unlock_gpus(const std::vector<int>& pids, const GpuOptions& options) {
  if (!options.open) return fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
  CKPT_TRY_ASSIGN(std::unique_ptr<device::ProcessControl> control, options.open());
  CKPT_TRY_ASSIGN(const std::vector<Suspended> found, find_suspended(*control, pids));
  for (const Suspended& process : found) {
    if (process.state == device::ProcessState::kLocked) continue;
    return Error(Code::kUsage, proc::describe_pid(process.pid), "is suspended, not merely locked")
        .with_hint(fmt::format("`ckpt resume -p {}` gives it its GPU state back", process.pid));
  }
  LockReport out;
  Stopwatch watch;
  for (const Suspended& process : found) {
    CKPT_TRY(unlock(*control, process.pid));
    out.pids.push_back(process.pid);
  }
  out.took_us = watch.lap_us();
  return out;
}

Result<ResumeReport> resume(const std::vector<int>& pids, const GpuOptions& options) {
  if (!options.open) return fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
  CKPT_TRY_ASSIGN(std::unique_ptr<device::ProcessControl> control, options.open());
  CKPT_TRY_ASSIGN(const std::vector<Suspended> found, find_suspended(*control, pids));
  ResumeReport out;
  if (found.empty()) return out;
  store::GpuState needs = needed(found);
  device::GpuMap map;
  if (!needs.used.empty() || !options.map.empty()) {
    auto here = control->gpus();  // the machine that it was suspended on
    for (const device::Gpu& gpu : here.value_or({})) needs.present.push_back(gpu.uuid);
    auto checked = check_gpus(*control, needs, options.map);
    if (!checked) return stays_suspended(std::move(checked).error(), found[0].pid);
    map = std::move(*checked);
  }
  Stopwatch watch;
  for (const Suspended& process : found) {
    if (process.state != device::ProcessState::kCheckpointed) continue;
    auto restored = control->restore(process.pid, map);
    if (!restored && is_still(*control, process.pid, device::ProcessState::kCheckpointed))
      return stays_suspended(std::move(restored).error(), process.pid);
  }
  for (const Suspended& process : found) {
    CKPT_TRY(unlock(*control, process.pid));
    Notes::remove(process.pid);
    out.pids.push_back(process.pid);
  }
  out.restore_us = watch.lap_us();
  return out;
}

namespace {

/// A call for a process that its caller did not live to see answered is over once the next one is: the driver takes
/// them in turn.
void settle(const std::vector<int>& pids, const GpuOptions& options) {
  auto control = options.open();
  for (int root : pids) {
    auto members = members_of(root);
    for (int pid : members.value_or({})) {
      if (control && may_use_gpu(pid) && (*control)->lock(pid, options.lock_timeout_us)) (void)(*control)->unlock(pid);
    }
  }
}

}  // namespace

Result<ResumeReport> resume_after(int other, int socket, const std::vector<int>& pids, const GpuOptions& options,
                                  const Cancel& cancel) {
  constexpr int kQuietLooks = 2, kLooks = 600;
  constexpr auto kPause = std::chrono::milliseconds(200);
  std::vector<OffloadedMemory> offloaded;
  for (bool more = socket >= 0; more;) {
    CKPT_TRY_ASSIGN(more, receive_offloaded(socket, offloaded));
  }
  CKPT_TRY(await_end(other, cancel));
  ResumeReport out;
  int quiet = 0;
  Result<ResumeReport> last = out;
  for (int look = 0; look < kLooks && quiet < kQuietLooks; ++look) {
    CKPT_TRY(cancel.check());
    if (look != 0) std::this_thread::sleep_for(kPause);
    last = resume(pids, options);
    if (!last && last.error().code == Code::kNotFound) return last;
    quiet = last && last->pids.empty() ? quiet + 1 : 0;
    if (!last) continue;
    if (quiet == 1) settle(pids, options);
    out.pids.insert(out.pids.end(), last->pids.begin(), last->pids.end());
    out.restore_us += last->restore_us;
  }
  if (!last) return last;
  CKPT_TRY(attach_offloaded(std::move(offloaded), options));
  return out;
}

Result<void> await_end(int pid, const Cancel& cancel) {
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process && errno == ESRCH) return {};
  if (!process) return sys_error(fmt::format("process {}", pid), "cannot be waited for");
  pollfd poll{process.get(), POLLIN, 0};
  for (;;) {
    CKPT_TRY(cancel.check());
    constexpr int kLookMs = 200;
    if (const int ready = ::poll(&poll, 1, kLookMs); ready > 0) return {};
    else if (ready < 0 && errno != EINTR) return sys_error(fmt::format("process {}", pid), "cannot be waited for");
  }
}

}  // namespace ckpt::engine
