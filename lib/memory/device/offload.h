// Device memory that waits in the hands of ckpt while its process lets go of it: nothing is copied, and the process
// gets the same memory back at the same addresses. The driver's own checkpoint then finds next to nothing to move.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/base/result.h"
#include "lib/device/device.h"
#include "lib/device/target.h"

namespace ckpt::capture {

class DeviceOffload {
 public:
  /// APIs locked and drained. Every owned allocation of the targets, or none: a failure gives back what was taken.
  /// Where even that fails, kTargetAltered says so, and the destructor tries once more.
  static Result<DeviceOffload> offload(const std::vector<device::Target*>& targets,
                                 const std::vector<device::Device*>& devices);
  DeviceOffload(DeviceOffload&& other) noexcept : held_(std::move(other.held_)) { other.held_.clear(); }
  DeviceOffload& operator=(DeviceOffload&&) = delete;
  /// Gives back, as far as there are targets.
  ~DeviceOffload();

  /// APIs locked. What fails stays here, and may be tried again.
  Result<void> give_back();
  uint64_t bytes() const;
  /// Calls `with(pid, id, fd)` for each allocation, until one fails.
  Result<void> for_each(const std::function<Result<void>(int pid, uint64_t id, int fd)>& with) const;

 private:
  struct Held {
    device::Target* target;
    device::Allocation allocation;
    UniqueFd fd;                             ///< for the target
    std::unique_ptr<device::Buffer> memory;  ///< keeps it alive, and lets ckpt copy from it meanwhile
  };
  DeviceOffload() = default;
  Result<void> take(device::Target& target, const device::Allocation& allocation,
                    const std::vector<device::Device*>& devices);
  std::vector<Held> held_;
};

}  // namespace ckpt::capture
