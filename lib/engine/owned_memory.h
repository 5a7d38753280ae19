// Device memory of processes that `ckpt run` started. An agent in each (device::Target) owns the large allocations, so
// that they are pre-copied while kernels run, and at a stop only what differs by hash; then ckpt keeps the memory
// while the process lets go of it, and the driver's own checkpoint has next to nothing to move.
//
//   pre_copy       kernels run
//   stop           GPU work is held; what memory is like then is known by hash, and in the image, unless the target is
//                  to set it aside (copy-on-write); the memory is offloaded to ckpt, no socket is left in the process.
//                  From here on `give_back` or `forget` must follow
//   give_back      the memory is where it was, and the GPU work goes on; the processes run
//   copy_deferred  what was set aside is copied
//   finish         what needs no stop
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/lease_renewal.h"
#include "lib/memory/device/capture.h"
#include "lib/memory/device/fill.h"
#include "lib/memory/device/offload.h"
#include "lib/memory/device/replay.h"

namespace ckpt::engine {

class OwnedMemory {
 public:
  OwnedMemory(const GpuOptions& options, ProgressSink& progress, const Cancel& cancel)
      : options_(options), progress_(progress), cancel_(cancel) {}
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;

  /// Those of the processes that have an agent and memory of its own. Where their devices cannot hash (a build without
  /// nvcc) the driver takes all of it, and a note says so. kBusy: another ckpt is talking to an agent.
  Result<void> connect(const std::vector<int>& pids);
  bool empty() const { return targets_.empty(); }
  std::vector<int> pids() const;

  /// What of a process is offloaded while it is checkpointed, once `connect` is done.
  uint64_t bytes_of(int pid) const;

  /// For store::number_spaces: entries with the processes' indices, whose spaces it fills in.
  void add_spaces(store::TreeImage& tree) const;
  /// The spaces are numbered in `tree`; what `parent` has of the same memory is not copied again.
  /// `max_cow`: bytes of device memory that may be set aside; 0: a quarter of what is free.
  Result<void> begin(const store::TreeImage& tree, store::ImageWriter& writer, const std::filesystem::path& parent,
                     unsigned workers, uint64_t max_cow);
  Result<void> pre_copy(unsigned iterations);
  enum class Copy {
    kNow,     ///< while GPU work is held
    kDeferred,  ///< once it goes on, where device memory has the room for what must be set aside until then; else now
  };
  /// kBusy: the work was not done in time, and goes on.
  Result<void> stop(ResumeGuard& guard, Copy copy);
  /// The processes are frozen: nothing of them is written from here on.
  void keep_no_leases() { leases_.reset(); }
  /// Between `stop` and `give_back`: what was left to be copied later is copied now.
  Result<void> copy_now();
  /// kTargetAltered: memory could not be put back. Does nothing where nothing is offloaded.
  Result<void> give_back();
  /// False: bytes as they were at the stop were lost, and only another stop, with kNow, makes it an image.
  Result<bool> copy_deferred();
  /// Metadata that is written after the freeze window, and tree.devices. Before the commit.
  Result<void> finish(store::TreeImage& tree, store::ImageWriter& writer);
  /// The processes have ended.
  void forget();

  /// Of device memory, as the passes counted it.
  const capture::DevicePass& pre_copied() const { return pre_copied_; }
  const capture::DevicePass& copied_last() const { return last_; }
  const capture::DevicePass& copied_deferred() const { return copied_deferred_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Result<void> open_devices();
  Result<void> renew_what_is_not_shared();
  uint64_t free_memory();
  Result<void> replay_delta();
  std::vector<device::Target*> targets() const;
  std::vector<device::Device*> devices() const;

  const GpuOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  std::vector<std::unique_ptr<device::Device>> devices_;
  std::vector<std::unique_ptr<device::Target>> targets_;
  std::unique_ptr<capture::ImageSink> sink_;
  std::unique_ptr<store::ImageReader> parent_;
  std::unique_ptr<capture::DeviceCapture> capture_;
  std::optional<capture::DeviceOffload> offload_;
  std::optional<LeaseRenewal> leases_;
  std::map<int, uint64_t> bytes_of_;  ///< by pid
  capture::DeviceOptions how_;
  bool deferred_ = false;  ///< the memory is to be copied once GPU work goes on
  std::optional<capture::ReplayDelta> replay_;
  capture::DevicePass pre_copied_, last_, copied_deferred_;
  uint64_t bytes_ = 0;
};

/// What an agent owns in a process; 0 where there is none to ask.
uint64_t owned_bytes(int pid, const GpuOptions& options);

/// Of a guard: memory that the processes let go of, attached again where it is still missing, and their APIs unlocked.
Result<void> attach_offloaded(std::vector<OffloadedMemory> offloaded, const GpuOptions& options);

/// What a tree's image needs of GPUs altogether.
store::GpuState with_owned_memory(const store::TreeImage& tree);

/// After a restore: the processes run, their GPU work waits. Fresh memory at the old addresses, filled from the image;
/// `lazy`: a launch waits for what it needs, and the rest comes meanwhile. Returns the bytes filled, once all is there.
Result<uint64_t> restore_owned(const store::ImageReader& image, const GpuOptions& options, bool lazy,
                               const Cancel& cancel);

}  // namespace ckpt::engine
