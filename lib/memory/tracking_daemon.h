// The tracking daemon: a small process that holds a target's write tracking (a duplicate of its userfaultfd) between a
// pre-dump and the next dump, so that the target's own descriptor table stays as it was. It ends with the target, when
// its tracking is taken over, or when it is killed: then the next dump copies everything, which costs speed and nothing
// else.
//
// It listens on a socket in the run folder (run_folder.h), whose name no other user can take first, and talks only to
// root and to its own user.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::capture {

/// Which process, for good: a pid and its start time in clock ticks since boot.
struct ProcessKey {
  int pid = 0;
  uint64_t start_time = 0;
};

/// The state of tracking: every page not reported as written is as it was in this image.
struct TrackedImage {
  std::filesystem::path path;  ///< absolute
  std::string id;
};

/// One capture of a process at a time: a record lock on a file of /proc/PID that only its owner and root can open.
class CaptureLock {
 public:
  /// kBusy: another ckpt has it. Ends with this process, however that ends; its children do not have it.
  static Result<CaptureLock> take(const ProcessKey& key);

 private:
  explicit CaptureLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

class TrackingDaemon {
 public:
  /// Forks the daemon while ckpt is still small; it waits for `hand_over`, and ends at once should ckpt end before.
  static Result<TrackingDaemon> spawn();
  TrackingDaemon(TrackingDaemon&&) noexcept = default;
  TrackingDaemon& operator=(TrackingDaemon&&) = delete;

  /// From here on the daemon holds the tracking by itself.
  Result<void> hand_over(const ProcessKey& key, int pidfd, int userfault, const TrackedImage& image);

 private:
  explicit TrackingDaemon(UniqueFd channel) : channel_(std::move(channel)) {}
  UniqueFd channel_;
};

struct Tracked {
  UniqueFd userfault;
  TrackedImage image;
};
/// Takes the tracking of a process away from its daemon, which then ends. Nothing: there is no daemon.
std::optional<Tracked> take_over_tracking(const ProcessKey& key);
/// Asks without taking.
std::optional<TrackedImage> tracked_image(const ProcessKey& key);

}  // namespace ckpt::capture
