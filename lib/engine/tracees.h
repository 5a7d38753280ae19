// The processes of a tree while it is captured: what is known of each, its lock, and the tracking of its writes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/capture_context.h"
#include "lib/engine/device_hold.h"
#include "lib/memory/tracking_daemon.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_tree.h"
#include "lib/proc/pagemap.h"
#include "lib/proc/usage.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

/// What is known of the writes of a process before this image.
enum class Tracking {
  kNone,            ///< nothing: it is copied as a whole
  kKept,            ///< a tracking daemon has those since the parent image; they have not been taken over from it
  kSinceParent,     ///< Tracee::userfault tells those since the parent image
  kSinceIteration,  ///< it tells those since the last iteration of pre-copy
};

/// One process of the tree.
struct Tracee {
  int pid = 0;
  capture::ProcessKey key;
  std::optional<proc::Gadgets> gadgets;  ///< nothing: it had just begun, or was about to end
  uint64_t private_pages = 0;            ///< held shortly before the freeze window
  bool has_pinned_pages = false;         ///< when it was collected last
  std::optional<capture::CaptureLock> lock;
  std::optional<capture::TrackingDaemon> daemon;  ///< for what it writes after this image
  UniqueFd userfault;                     ///< tracks its writes; also where nothing is known of those so far
  Tracking tracking = Tracking::kNone;
  std::vector<proc::PageRegion> changes;  ///< what a tracked one wrote, up to the instant of the image
  proc::Usage usage;                      ///< when its capture began

  bool tracked() const { return tracking != Tracking::kNone; }
};

/// Its end lets go of the locks, of the tracking daemons that were given nothing, and of tracking that nobody was
/// given.
class Tracees {
 public:
  Tracees(CaptureContext& context, DeviceHold& devices) : context_(context), devices_(devices) {}
  Tracees(const Tracees&) = delete;
  Tracees& operator=(const Tracees&) = delete;

  /// Asks /proc for all of the tree while it runs, and the driver for its GPUs. Refuses what stands in the way.
  Result<void> collect() { return collect(nullptr); }
  /// Once the tree has gone on: locks what is new. Returns what was known before, without the mappings.
  Result<capture::Inventory> collect_again();
  /// One capture of a process at a time: two would each make the other one miss what was written.
  Result<void> lock();
  /// What ckpts that were killed have left would be taken for the target's own.
  Result<void> clear_leftovers();

  /// For the tracking of what is written after this image. Once; a failure costs the next capture speed.
  void spawn_daemons();
  /// From here on the old tracking is ours alone: protecting pages again invalidates the tracking daemon's record of
  /// its image, `parent`. What belongs to another image is left with its tracking daemon unless new tracking is about
  /// to replace it
  /// (`all`).
  void take_over_tracking(const std::string& parent, bool all);
  bool any_tracked() const;

  /// Waits for what the io_urings and AIO contexts of the frozen tree have in flight. Returns the processes that still
  /// have something there. `known`: of the tree.
  Result<std::vector<int>> drain_requests(const proc::FrozenTree& tree, const capture::Inventory& known) const;

  /// As the tree stands, frozen.
  Result<void> set_members(const std::vector<proc::TreeEntry>& entries);
  const std::vector<capture::Member>& members() const { return members_; }
  /// The entry of a process, made when it is first seen.
  Tracee& of(const capture::Member& member);
  std::map<int, Tracee>& all() { return all_; }
  const std::map<int, Tracee>& all() const { return all_; }
  Tracee& of(int pid) { return all_[pid]; }

  /// As it was collected last, while it ran.
  capture::Inventory& running() { return running_; }
  const capture::Inventory& running() const { return running_; }
  uint64_t collected_at_us() const { return collected_at_us_; }

 private:
  Result<void> collect(const capture::Inventory* just_before);
  Result<void> collect_running(const capture::Inventory* just_before);
  Result<void> find_devices();
  Result<bool> drain_rings(const proc::FrozenProcess& process, const capture::Inventory& known, int index) const;
  bool drain_aio(int pid, const capture::Inventory& known, int index) const;

  CaptureContext& context_;
  DeviceHold& devices_;
  std::vector<capture::Member> members_;
  capture::Inventory running_;
  uint64_t collected_at_us_ = 0;  ///< when collecting began
  bool spawned_daemons_ = false;
  std::map<int, Tracee> all_;     ///< by pid
};

}  // namespace ckpt::engine
