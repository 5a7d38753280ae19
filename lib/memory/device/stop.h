// A short stop of what several processes do with their devices: all APIs locked, then all work drained. The processes
// themselves run on.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/device/target.h"

namespace ckpt::capture {

class DeviceStop {
 public:
  /// All or none: on a failure every API is unlocked again. kBusy: a lock or the work took too long (a kernel that
  /// waits for something never ends).
  static Result<DeviceStop> begin(std::vector<device::Target*> targets, uint64_t timeout_us);
  DeviceStop(DeviceStop&& other) noexcept : closed_(std::move(other.closed_)), since_us_(other.since_us_) {
    other.closed_.clear();
  }
  DeviceStop& operator=(DeviceStop&&) = delete;
  /// Unlocks the APIs, as far as there are targets.
  ~DeviceStop();

  /// Unlocks the APIs; the first failure of all. Microseconds since locking began.
  Result<uint64_t> end();
  /// The APIs stay locked; whoever calls this unlocks them.
  void keep() { closed_.clear(); }

 private:
  DeviceStop();
  std::vector<device::Target*> closed_;
  uint64_t since_us_;
};

}  // namespace ckpt::capture
