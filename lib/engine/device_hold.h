// The GPUs' part of a capture, of a suspension, of a restore: which processes have device state, and the driver's calls
// for them in the order that keeps it consistent. All processes are locked before the first is checkpointed, and all
// are restored before the first is unlocked: they may wait for each other's work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/device/device.h"
#include "lib/device/process_control.h"
#include "lib/device/target.h"
#include "lib/engine/gpu_room.h"
#include "lib/engine/resume_guard.h"
#include "lib/memory/device/replay.h"
#include "lib/proc/frozen_tree.h"
#include "lib/state/gpu/record.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

struct GpuOptions {
  enum class Policy {
    kAuto,  ///< the processes that have a GPU are checkpointed by its driver
    kOff,   ///< a GPU is an obstacle
    kOnly,  ///< a tree without a GPU is refused
  };
  Policy policy = Policy::kAuto;
  uint64_t lock_timeout_us = 10'000'000;  ///< for submitted work to end
  device::GpuMap map;                     ///< restore: old UUID to new UUID
  capture::DeltaMode delta = capture::DeltaMode::kCopy;  ///< of memory that an agent owns
  /// Called when the first process with a GPU is met; empty: there is no such driver.
  std::function<Result<std::unique_ptr<device::ProcessControl>>()> open;
  /// The agent in a process that `ckpt run` started, within `timeout_us`; kNotFound: there is none. Empty: not asked
  /// for.
  std::function<Result<std::unique_ptr<device::Target>>(int pid, uint64_t timeout_us)> connect;
  /// A device for ckpt's own work. kUnsupported: its kernels do not run there.
  std::function<Result<std::unique_ptr<device::Device>>(const std::string& uuid)> open_device;
  /// Of ResumeGuard.
  std::vector<std::string> resume_command;
};

/// Whether a process has opened a GPU, or loaded its driver's library.
bool may_use_gpu(int pid);
/// Whether it maps a GPU's memory: the library alone does not mean that there is a GPU.
bool has_gpu_memory(int pid);

class DeviceHold {
 public:
  explicit DeviceHold(const GpuOptions& options) : options_(options) {}
  DeviceHold(const DeviceHold&) = delete;
  DeviceHold& operator=(const DeviceHold&) = delete;
  /// Gives back what is still held, by `give_back(nullptr)`.
  ~DeviceHold();

  /// Which of the processes have device state, and what stands in the way of its checkpoint. kUnsupported: no driver
  /// that can checkpoint them, or one that has failed for good; kBusy: one is locked by somebody else. `may_use` asks
  /// an inventory of a moment ago instead of the process.
  Result<void> find(const std::vector<int>& pids, const std::function<bool(int)>& may_use = may_use_gpu);
  bool empty() const { return held_.empty(); }
  struct Hazard {
    int pid = 0;
    std::string what;
  };
  const std::vector<Hazard>& hazards() const { return hazards_; }
  /// What a person should know of them, no obstacle; each once.
  std::vector<Hazard> new_notes() { return std::exchange(notes_, {}); }
  bool holds(int pid) const;
  std::vector<int> pids() const;
  /// The thread that serves the driver in `pid`; 0: it has no device state.
  int restore_thread(int pid) const;
  device::ProcessControl& control() { return *control_; }

  /// Before anything waits: asks what takes the driver seconds to answer at first, and whether what it would move to
  /// host memory has room there. `stays`: of a process, bytes of device memory that will not be there any more.
  /// kNoRoom.
  Result<void> look(const std::function<uint64_t(int pid)>& stays);
  /// What each would move, as far as it is known.
  std::vector<GpuLoad> loads(const std::function<uint64_t(int pid)>& stays) const;

  /// From here on until `end_guard`, the end of ckpt leaves none without its GPU. `lock` starts it, too.
  Result<void> start_guard();
  void end_guard() { guard_.end(); }
  ResumeGuard& guard() { return guard_; }
  /// Locks all, or none. kBusy: work was not done in time.
  Result<void> lock();
  /// Moves all device state into the processes' memory. `tree`: they are frozen, and each restore thread alone runs.
  Result<void> checkpoint(proc::FrozenTree* tree);
  /// What became free at the checkpoint.
  const store::GpuState& state() const { return state_; }
  /// Restores what was checkpointed and unlocks what was locked. kTargetAltered: the driver refused; the message says
  /// what state they are in and what frees them. Idempotent. The guard goes on.
  Result<void> give_back(proc::FrozenTree* tree);
  /// They have ended, or are to stay as they are.
  void forget();

 private:
  enum class Step { kFound, kLocked, kCheckpointed };
  struct Held {
    int pid = 0, thread = 0;
    Step step = Step::kFound;
  };
  Result<void> add(int pid);
  Result<void> in(const Held& held, proc::FrozenTree* tree, const std::function<Result<void>()>& work);

  const GpuOptions& options_;
  std::unique_ptr<device::ProcessControl> control_;
  std::vector<Held> held_;
  std::vector<Hazard> hazards_, notes_;
  std::set<int> without_agent_;  ///< of which that was noted
  std::vector<device::Gpu> free_before_;
  std::optional<std::vector<store::GpuUse>> use_;  ///< of all together, when they were locked; nothing: not told
  store::GpuState state_;
  ResumeGuard guard_;
};

/// Its hazards, as check and dump tell of obstacles.
std::vector<capture::Blocker> blockers_of(const DeviceHold& devices);

}  // namespace ckpt::engine
