#include "lib/engine/lease_renewal.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "lib/base/threads.h"

namespace ckpt::engine {

namespace {

void keep(const std::vector<device::Target*>& targets, const std::stop_token& end) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, end, kPause, [&] { return end.stop_requested(); })) {
    for (device::Target* target : targets) target->renew_lease();
  }
}

}  // namespace

LeaseRenewal::LeaseRenewal(std::vector<device::Target*> targets) {
  (void)start_thread(thread_, [targets = std::move(targets), end = end_.get_token()] { keep(targets, end); });
}

LeaseRenewal::~LeaseRenewal() {
  end_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace ckpt::engine
