// The devices' part of a capture: memory of processes that `ckpt run` started, and the driver's checkpoints of all that
// have a GPU.
#pragma once

#include <cstdint>

#include "lib/base/result.h"
#include "lib/engine/capture_context.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/new_image.h"
#include "lib/engine/owned_memory.h"
#include "lib/proc/frozen_tree.h"

namespace ckpt::engine {

/// The order of a capture: prepare, pre_copy, hold; with the tree frozen checkpoint, give_back; once it runs attach,
/// copy_deferred. Wherever it fails `give_back` and `attach` must follow, as far as there is something to give back.
class CaptureDevices {
 public:
  explicit CaptureDevices(CaptureContext& context)
      : context_(context),
        owned_(context.options.gpu, context.progress, context.cancel),
        driver_(context.options.gpu) {}
  CaptureDevices(const CaptureDevices&) = delete;
  CaptureDevices& operator=(const CaptureDevices&) = delete;

  DeviceHold& driver() { return driver_; }
  OwnedMemory& owned() { return owned_; }
  bool empty() const { return driver_.empty(); }

  /// Refuses what would find no room in host memory. Nothing is held.
  Result<void> prepare();
  /// While kernels run. `running`: the tree, whose spaces get their numbers.
  Result<void> pre_copy(store::TreeImage& running, NewImage& image);
  /// GPU work waits from here on.
  Result<void> hold(OwnedMemory::Copy copy);
  Result<void> checkpoint(proc::FrozenTree& tree);
  /// The driver's part, while the processes are frozen; null: they are not.
  Result<void> give_back(proc::FrozenTree* tree);
  /// Then the memory that ckpt owns, for which the processes must run; GPU work goes on.
  Result<void> attach();
  /// How long it waited, of a tree that goes on.
  void count_held();
  /// What was to be copied once GPU work goes on. False: it could not be kept as it was at the stop.
  Result<bool> copy_deferred();
  /// The processes have ended.
  void forget();
  /// For the report.
  void count();

 private:
  CaptureContext& context_;
  OwnedMemory owned_;
  DeviceHold driver_;
  uint64_t held_since_us_ = 0;  ///< GPU work waits; 0: it does not
};

}  // namespace ckpt::engine
