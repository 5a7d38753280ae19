#include "lib/engine/device_hold.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/text.h"
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

/// What of each GPU became free between two questions.
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
    // The library alone does not mean that there is a GPU: PyTorch's CUDA build runs on machines without one.
    if (!opened && !maps_any(pid, is_gpu)) return {};
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

Result<void> DeviceHold::lock() {
  if (held_.empty()) return {};
  CKPT_TRY(start_guard());
  // Before anything waits: the first question takes seconds. A GPU without room for the question is no obstacle.
  if (auto before = control_->gpus()) free_before_ = std::move(*before);
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
  if (auto after = control_->gpus()) state_.used = freed(free_before_, *after);
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

Result<device::GpuMap> check_gpus(device::ProcessControl& control, const store::GpuState& state,
                                  const device::GpuMap& map) {
  CKPT_TRY_ASSIGN(const std::vector<device::Gpu> here, control.gpus());
  auto mapped = [&](const std::string& uuid) {
    auto pair = std::find_if(map.begin(), map.end(), [&](const auto& p) { return p.first == uuid; });
    return pair == map.end() ? uuid : pair->second;
  };
  for (const auto& [from, to] : map) {
    if (std::none_of(state.used.begin(), state.used.end(), [&](const store::GpuUse& use) { return use.uuid == from; }))
      return fail(Code::kUsage, "--gpu-map " + from, "is not a GPU that the image used");
  }
  device::GpuMap out;
  for (const store::GpuUse& use : state.used) {
    const std::string uuid = mapped(use.uuid);
    auto gpu = std::find_if(here.begin(), here.end(), [&](const device::Gpu& g) { return g.uuid == uuid; });
    if (gpu == here.end()) {
      return Error(Code::kNotFound, uuid, "is not a GPU of this machine")
          .with_hint("--gpu-map " + use.uuid + "=UUID puts its state on another one of the same kind");
    }
    if (gpu->free_bytes < use.bytes) {
      return fail(Code::kNoRoom, uuid,
                  fmt::format("has {} free, and {} are needed", human_bytes(gpu->free_bytes), human_bytes(use.bytes)));
    }
    if (!map.empty()) out.emplace_back(use.uuid, uuid);
  }
  return out;
}

}  // namespace ckpt::engine
