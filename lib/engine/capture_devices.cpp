// The devices' part of a capture: memory of processes that `ckpt run` started, and the driver's checkpoints of all that
// have a GPU.
#include "lib/engine/capture.h"
#include "lib/memory/spaces.h"

namespace ckpt::engine {

/// What a GPU writes into host memory goes past every page table: no tracking of such a process is to be trusted.
Result<void> Capture::find_devices() {
  std::vector<int> pids;
  for (const auto& [pid, process] : subjects_) pids.push_back(pid);
  CKPT_TRY(devices_.find(pids, [this](int pid) {
    const int seen = before_.find(pid);
    return seen < 0 ? may_use_gpu(pid) : before_.gpus[static_cast<size_t>(seen)];
  }));
  if (!devices_.hazards().empty()) return capture::blocked_error(options_.pid, blockers_of(devices_));
  for (int pid : devices_.pids()) subjects_[pid].pinned = true;
  return {};
}

Result<void> Capture::copy_devices_ahead() {
  CKPT_TRY(owned_.connect(devices_.pids()));
  if (owned_.empty()) return {};
  owned_.add_spaces(before_.image);
  CKPT_TRY(capture::number_spaces(before_.image, earlier_trees()));
  numbered_ = before_.image;
  progress_.begin("copy ahead", owned_.bytes());
  CKPT_TRY(owned_.begin(before_.image, *writer_, parent_, options_.workers, options_.max_cow));
  constexpr unsigned kRounds = 2;  // all of it, and what was written meanwhile
  CKPT_TRY(owned_.copy_ahead(options_.rounds.value_or(kRounds)));
  phase("gpu copy ahead");
  return {};
}

Result<void> Capture::stop_devices(OwnedMemory::Copy copy) {
  if (devices_.empty()) return {};
  CKPT_TRY(devices_.start_guard());
  held_since_us_ = monotonic_us();
  if (!owned_.empty()) {
    CKPT_TRY(owned_.stop(devices_.guard(), copy));
    phase("gpu delta");
  }
  return devices_.lock();
}

/// Device memory, while it is written. Where it could not be kept as it was, the tree is taken once more, all of it: of
/// another moment, for which little is left to copy.
Result<void> Capture::copy_devices_behind() {
  CKPT_TRY_ASSIGN(const bool kept, owned_.copy_behind());
  if (!owned_.empty()) phase("gpu copy behind");
  if (kept) return {};
  progress_.note("device memory was written in a way that could not be foreseen: the image is of a second stop");
  CKPT_TRY(forget_moment());
  return take_moment(OwnedMemory::Copy::kNow);
}

/// Nothing of it is in the image yet: `copy_frozen` sees to that.
Result<void> Capture::forget_moment() {
  CKPT_TRY(finish_snapshots());
  manifest_.stats.stops_us += manifest_.stats.frozen_us;
  contents_.clear();
  copied_.clear();
  for (auto& [pid, process] : subjects_) {
    process.snapshot.reset();
    process.xstates.clear();
    process.plan = {};
  }
  frozen_.reset();
  return {};
}

void Capture::count_devices() {
  store::CaptureStats& stats = manifest_.stats;
  auto bytes = [](const capture::DevicePass& pass) { return pass.copied * capture::kDeviceChunk; };
  stats.gpu_bytes = owned_.bytes();
  stats.gpu_bytes_ahead = bytes(owned_.copied_ahead()), stats.gpu_bytes_last = bytes(owned_.copied_last());
  stats.gpu_bytes_behind = bytes(owned_.copied_behind());
}

/// Also where a capture has failed, at whatever step: the driver's part while the processes stand still, then the
/// memory, for which they must run.
Result<void> Capture::give_devices_back() {
  CKPT_TRY(devices_.give_back(frozen_ ? &*frozen_ : nullptr));
  if (frozen_) {
    scratches_.clear();
    frozen_->release();
  }
  CKPT_TRY(owned_.give_back());
  devices_.end_guard();
  return {};
}

}  // namespace ckpt::engine
