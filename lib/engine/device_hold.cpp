#include "lib/engine/device_hold.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/engine/gpu_hazards.h"
#include "lib/proc/procfs.h"
#include "lib/proc/run_alone.h"

namespace ckpt::engine {

namespace {

bool is_gpu(const std::string& path) { return path.rfind("/dev/nvidia", 0) == 0; }

template <class Accepts>
bool maps_any(int pid, Accepts accepts) {
  auto maps = proc::read_maps(pid, false);
  return maps && std::any_of(maps->begin(), maps->end(), [&](const proc::Vma& vma) { return accepts(vma.name); });
}

std::string commands_for(const std::vector<int>& pids) {
  std::string out;
  for (int pid : pids) out += fmt::format("{}`ckpt resume -p {}`", out.empty() ? "" : ", ", pid);
  return out;
}

/// What the processes have together. Nothing: it is not told of all of them.
std::optional<std::vector<store::GpuUse>> use_of(device::ProcessControl& control, const std::vector<int>& pids) {
  std::vector<store::GpuUse> out;
  for (int pid : pids) {
    auto shares = control.memory_of(pid);
    if (!shares) return std::nullopt;
    for (const device::GpuShare& share : *shares) {
      auto same = std::find_if(out.begin(), out.end(), [&](const auto& other) { return other.uuid == share.uuid; });
      if (same == out.end())
        out.push_back({share.uuid, share.name, share.bytes});
      else
        same->bytes += share.bytes;
    }
  }
  return out;
}

/// What of each GPU became free between two questions: of one that others use, too, it is wrong by what they do.
std::vector<store::GpuUse> freed(const std::vector<device::Gpu>& before, const std::vector<device::Gpu>& after) {
  std::vector<store::GpuUse> out;
  for (const device::Gpu& gpu : after) {
    auto same =
        std::find_if(before.begin(), before.end(), [&](const device::Gpu& other) { return other.uuid == gpu.uuid; });
    if (same != before.end() && gpu.free_bytes > same->free_bytes)
      out.push_back({gpu.uuid, gpu.name, gpu.free_bytes - same->free_bytes});
  }
  return out;
}

}  // namespace

bool may_use_gpu(int pid) {
  return maps_any(pid, capture::is_of_gpu);
}

bool has_gpu_memory(int pid) { return maps_any(pid, is_gpu); }

DeviceHold::~DeviceHold() { (void)give_back(nullptr); }

bool DeviceHold::holds(int pid) const { return restore_thread(pid) != 0; }

int DeviceHold::restore_thread(int pid) const {
  for (const Held& held : held_) {
    if (held.pid == pid) return held.thread;
  }
  return 0;
}

std::vector<int> DeviceHold::pids() const {
  std::vector<int> out;
  for (const Held& held : held_) out.push_back(held.pid);
  return out;
}

Result<void> DeviceHold::find(const std::vector<int>& pids, const std::function<bool(int)>& may_use) {
  held_.clear(), hazards_.clear();
  if (options_.policy == GpuOptions::Policy::kOff) return {};
  for (int pid : pids) {
    if (may_use(pid)) CKPT_TRY(add(pid));
  }
  if (held_.empty() && hazards_.empty() && options_.policy == GpuOptions::Policy::kOnly)
    return fail(Code::kUsage, pids.empty() ? "" : proc::describe_pid(pids[0]),
                "has no GPU state, and --gpu=only asks for some");
  return {};
}

Result<void> DeviceHold::add(int pid) {
  if (!control_) {
    auto opened = options_.open ? options_.open() : fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
    // PyTorch's CUDA build runs on machines without a GPU.
    if (!opened && !has_gpu_memory(pid)) return {};
    if (!opened)
      return Error(std::move(opened).error())
          .with_cause(proc::describe_pid(pid) + " uses a GPU")
          .with_hint("--gpu=off says what else stands in the way");
    control_ = std::move(*opened);
  }
  const std::vector<std::string> hazards = gpu_hazards(pid, options_);
  if (!hazards.empty()) {
    for (const std::string& hazard : hazards) hazards_.push_back({pid, hazard});
    return {};
  }
  CKPT_TRY_ASSIGN(const device::ProcessState state, control_->state(pid));
  switch (state) {
    case device::ProcessState::kNone:
    case device::ProcessState::kCheckpointed:
      return {};  // suspended: its device state is in its memory already, and stays there
    case device::ProcessState::kLocked:
      return Error(Code::kBusy, proc::describe_pid(pid), "its GPU calls are locked already, by another program")
          .with_hint(commands_for({pid}) + " unlocks them");
    case device::ProcessState::kFailed:
      return fail(Code::kUnsupported, proc::describe_pid(pid),
                  "its GPU state has failed in an earlier checkpoint and cannot be saved any more");
    case device::ProcessState::kRunning: break;
  }
  if (lacks_agent(pid, options_) && without_agent_.insert(pid).second)
    notes_.push_back({pid,
                      "was started by ckpt run and has no agent: the driver moves all of its device memory, and "
                      "what it cannot move is not known beforehand"});
  CKPT_TRY_ASSIGN(const int thread, control_->restore_thread(pid));
  held_.push_back({pid, thread, Step::kFound});
  return {};
}

Result<void> DeviceHold::start_guard() {
  return held_.empty() ? Result<void>() : guard_.start(options_.resume_command, pids());
}

Result<void> DeviceHold::in(const Held& held, proc::FrozenTree* tree, const std::function<Result<void>()>& work) {
  if (tree == nullptr) return work();
  CKPT_TRY(proc::run_alone(held.pid, held.thread, work));
  constexpr uint64_t kStopUs = 1'000'000;
  return tree->process(held.pid).stop_new_threads(kStopUs);
}

std::vector<GpuLoad> DeviceHold::loads(const std::function<uint64_t(int pid)>& stays) const {
  std::vector<GpuLoad> out;
  for (const Held& held : held_) {
    auto shares = control_->memory_of(held.pid);
    uint64_t bytes = 0;
    if (shares) {
      for (const device::GpuShare& share : *shares) bytes += share.bytes;
    }
    out.push_back({held.pid, bytes - std::min(bytes, stays(held.pid))});
  }
  return out;
}

Result<void> DeviceHold::look(const std::function<uint64_t(int pid)>& stays) {
  if (held_.empty()) return {};
  // A GPU without room for the question is no obstacle.
  if (auto before = control_->gpus()) free_before_ = std::move(*before);
  return check_host_room(loads(stays));
}

Result<void> DeviceHold::lock() {
  if (held_.empty()) return {};
  CKPT_TRY(start_guard());
  if (auto before = control_->gpus()) free_before_ = std::move(*before);
  use_ = use_of(*control_, pids());
  for (Held& held : held_) {
    auto locked = control_->lock(held.pid, options_.lock_timeout_us);
    if (!locked) {
      (void)give_back(nullptr);
      return Error(std::move(locked).error());
    }
    held.step = Step::kLocked;
  }
  return {};
}

Result<void> DeviceHold::checkpoint(proc::FrozenTree* tree) {
  if (held_.empty()) return {};
  for (Held& held : held_) {
    // Also where it fails: what the driver says of the process then decides how it is brought back.
    held.step = Step::kCheckpointed;
    CKPT_TRY(in(held, tree, [&] { return control_->checkpoint(held.pid); }));
  }
  state_.driver = control_->version();
  state_.present.clear();
  for (const device::Gpu& gpu : free_before_) state_.present.push_back(gpu.uuid);
  if (use_)
    state_.used = *use_;
  else if (auto after = control_->gpus())
    state_.used = freed(free_before_, *after);
  return {};
}

Result<void> DeviceHold::give_back(proc::FrozenTree* tree) {
  std::vector<int> stuck;
  std::string why;
  auto attempt = [&](Held& held, const std::function<Result<void>()>& work) {
    auto done = in(held, tree, work);
    if (done || done.error().code == Code::kNotFound || !proc::read_stat(held.pid)) return;  // it has ended
    why += (why.empty() ? "" : "; ") + done.error().text();
    stuck.push_back(held.pid);
    held.step = Step::kFound;
  };
  for (Held& held : held_) {
    if (held.step != Step::kCheckpointed) continue;
    attempt(held, [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const device::ProcessState state, control_->state(held.pid));
      return state == device::ProcessState::kCheckpointed ? control_->restore(held.pid, {}) : Result<void>();
    });
  }
  for (Held& held : held_) {
    if (held.step == Step::kFound) continue;
    attempt(held, [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const device::ProcessState state, control_->state(held.pid));
      return state == device::ProcessState::kLocked ? control_->unlock(held.pid) : Result<void>();
    });
    held.step = Step::kFound;
  }
  if (stuck.empty()) return {};
  Error out(Code::kTargetAltered, proc::describe_pid(stuck[0]),
            "its GPU state could not be put back: its GPU calls wait");
  return std::move(out)
      .with_cause(why)
      .with_target("running, without its GPU")
      .with_hint(commands_for(stuck) + " tries again, once there is room on the GPU");
}

void DeviceHold::forget() {
  for (Held& held : held_) held.step = Step::kFound;
  end_guard();
}

std::vector<capture::Blocker> blockers_of(const DeviceHold& devices) {
  std::vector<capture::Blocker> out;
  for (const DeviceHold::Hazard& hazard : devices.hazards())
    out.push_back({proc::describe_pid(hazard.pid), hazard.what, ""});
  return out;
}

}  // namespace ckpt::engine
