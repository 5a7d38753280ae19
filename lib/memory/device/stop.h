// A short stop of what several processes do with their devices: all gates closed, then all work drained. The processes
// themselves run on.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"
#include "lib/device/target.h"

namespace ckpt::capture {

class DeviceStop {
 public:
  /// All or none: on a failure every gate is open again. kBusy: a gate or the work took too long (a kernel that waits
  /// for something never ends).
  static Result<DeviceStop> begin(std::vector<device::Target*> targets, uint64_t timeout_us);
  DeviceStop(DeviceStop&& other) noexcept : closed_(std::move(other.closed_)), since_us_(other.since_us_) {
    other.closed_.clear();
  }
  DeviceStop& operator=(DeviceStop&&) = delete;
  /// Opens the gates, as far as there are targets.
  ~DeviceStop();

  /// Opens the gates; the first failure of all. Microseconds since they began to close.
  Result<uint64_t> end();
  /// The gates stay closed; whoever calls this opens them.
  void keep() { closed_.clear(); }

 private:
  DeviceStop();
  std::vector<device::Target*> closed_;
  uint64_t since_us_;
};

}  // namespace ckpt::capture
