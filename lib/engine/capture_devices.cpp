// The devices' part of a capture: memory of processes that `ckpt run` started, and the driver's checkpoints of all that have a GPU.
#include "lib/capture/spaces.h"
#include "lib/engine/capture.h"

namespace ckpt::engine {

/// What a GPU writes into host memory goes past every page table: no tracking of such a process is to be trusted.
Result<void> Capture::find_devices() {
  std::vector<int> pids;
  for (const auto& [pid, process] : subjects_) pids.push_back(pid);
  CKPT_TRY(devices_.find(pids));
  for (int pid : devices_.pids()) subjects_[pid].pinned = true;
  return {};
}

Result<void> Capture::copy_devices_ahead() {
  CKPT_TRY(owned_.connect(devices_.pids(), progress_));
  if (owned_.empty()) return {};
  owned_.add_spaces(before_.image);
  CKPT_TRY(capture::number_spaces(before_.image, earlier_trees()));
  numbered_ = before_.image;
  progress_.begin("copy ahead", owned_.bytes());
  CKPT_TRY(owned_.begin(before_.image, *writer_, parent_, options_.workers));
  constexpr unsigned kRounds = 2;  // all of it, and what was written meanwhile
  CKPT_TRY(owned_.copy_ahead(options_.rounds.value_or(kRounds)));
  phase("gpu copy ahead");
  return {};
}

Result<void> Capture::stop_devices() {
  CKPT_TRY(devices_.start_guard());
  if (!owned_.empty()) {
    CKPT_TRY(owned_.stop(devices_.guard()));
    phase("gpu delta");
  }
  return devices_.lock();
}

/// Also where a capture has failed, at whatever step: the driver's part while the processes stand still, then the memory,
/// for which they must run.
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
