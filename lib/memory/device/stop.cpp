#include "lib/memory/device/stop.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"

namespace ckpt::capture {

DeviceStop::DeviceStop() : since_us_(monotonic_us()) {}

Result<DeviceStop> DeviceStop::begin(std::vector<device::Target*> targets, uint64_t timeout_us) {
  DeviceStop out;
  auto left = [&] { return timeout_us - std::min(timeout_us, monotonic_us() - out.since_us_); };
  for (device::Target* target : targets) {
    CKPT_TRY(target->lock_api(left()));
    out.closed_.push_back(target);
  }
  for (device::Target* target : targets) CKPT_TRY(target->drain(left()));
  return out;
}

DeviceStop::~DeviceStop() {
  for (device::Target* target : closed_) (void)target->unlock_api();
}

Result<uint64_t> DeviceStop::end() {
  Result<void> first;
  for (device::Target* target : std::exchange(closed_, {})) {
    Result<void> opened = target->unlock_api();
    if (first && !opened) first = std::move(opened);
  }
  if (!first) return std::move(first).error();
  return monotonic_us() - since_us_;
}

}  // namespace ckpt::capture
