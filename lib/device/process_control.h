// The driver's own checkpoints of whole processes, as the engine uses them: a process that has a device is locked,
// checkpointed (its device state moves into its own host memory, and it lets go of the device), restored, unlocked.
//
//   running --lock--> locked --checkpoint--> checkpointed --restore--> locked --unlock--> running
//
// Implemented by plugins/cuda over cuCheckpointProcess* (CUDA 12.8 and later). Calls block; `checkpoint` and `restore`
// need the target's restore thread to run, whatever else of it stands still.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::device {

enum class ProcessState { kNone, kRunning, kLocked, kCheckpointed, kFailed };  ///< kNone: it does not use a device

/// One device of this machine.
struct Gpu {
  std::string uuid;  ///< "GPU-" and 32 hexadecimal digits in five groups, as nvidia-smi prints it
  std::string name;
  uint64_t total_bytes = 0, free_bytes = 0;
};

/// What one process has of a device's memory.
struct GpuShare {
  std::string uuid, name;
  uint64_t bytes = 0;
};

/// Old UUID to new UUID, in restores.
using GpuMap = std::vector<std::pair<std::string, std::string>>;

class ProcessControl {
 public:
  virtual ~ProcessControl() = default;

  /// "driver 580.95.05, CUDA 13.0"
  virtual std::string version() const = 0;
  /// kUnsupported: the driver has no such calls.
  virtual Result<ProcessState> state(int pid) = 0;
  /// The thread that works for `checkpoint` and `restore` in the target.
  virtual Result<int> restore_thread(int pid) = 0;
  /// Holds the process's calls and waits until its submitted work is done. kBusy: not within the time; it runs on as
  /// before.
  virtual Result<void> lock(int pid, uint64_t timeout_us) = 0;
  virtual Result<void> checkpoint(int pid) = 0;
  /// To the same devices, or to those that `gpus` names: then every device that the process had must be named, whether
  /// it used it or not, and no two may go to one.
  virtual Result<void> restore(int pid, const GpuMap& gpus) = 0;
  virtual Result<void> unlock(int pid) = 0;
  /// With what is free of each at this moment. The first question may take seconds.
  virtual Result<std::vector<Gpu>> gpus() = 0;
  /// Of every device whose memory the process has. kUnsupported: it cannot be told here.
  virtual Result<std::vector<GpuShare>> memory_of(int pid) = 0;
};

}  // namespace ckpt::device
