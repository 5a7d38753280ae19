// While targets are held (device::Target::hold): nothing that takes long outlasts their leases.
#pragma once

#include <stop_token>
#include <thread>
#include <vector>

#include "lib/device/target.h"

namespace ckpt::engine {

/// Renews the leases, in a thread of its own, until its end. No other call may be made on the targets meanwhile. Should
/// ckpt be killed, they run out; where there is no room for a thread they do, too.
class LeaseRenewal {
 public:
  explicit LeaseRenewal(std::vector<device::Target*> targets);
  LeaseRenewal(const LeaseRenewal&) = delete;
  LeaseRenewal& operator=(const LeaseRenewal&) = delete;
  ~LeaseRenewal();

 private:
  std::stop_source end_;
  std::thread thread_;
};

}  // namespace ckpt::engine
