#include "lib/engine/capture_devices.h"

#include <utility>

#include "lib/base/clock.h"

namespace ckpt::engine {

Result<void> CaptureDevices::prepare() {
  return driver_.look([this](int pid) { return owned_bytes(pid, context_.options.gpu); });
}

Result<void> CaptureDevices::pre_copy(store::TreeImage& running, NewImage& image) {
  const DumpOptions& options = context_.options;
  CKPT_TRY(owned_.connect(driver_.pids()));
  CKPT_TRY(driver_.look([this](int pid) { return owned_.bytes_of(pid); }));
  if (owned_.empty()) return {};
  owned_.add_spaces(running);
  CKPT_TRY(image.number_spaces(running));
  image.keep_numbers(running);
  context_.progress.begin("pre-copy", owned_.bytes());
  CKPT_TRY(owned_.begin(running, image.writer(), image.parent(), options.workers, options.max_cow));
  constexpr unsigned kIterations = 2;  // all of it, and what was written meanwhile
  CKPT_TRY(owned_.pre_copy(options.iterations.value_or(kIterations)));
  context_.phase("gpu pre-copy");
  return {};
}

Result<void> CaptureDevices::hold(OwnedMemory::Copy copy) {
  if (driver_.empty()) return {};
  CKPT_TRY(driver_.start_guard());
  held_since_us_ = monotonic_us();
  if (!owned_.empty()) {
    CKPT_TRY(owned_.stop(driver_.guard(), copy));
    context_.phase("gpu delta");
  }
  return driver_.lock();
}

Result<void> CaptureDevices::checkpoint(proc::FrozenTree& tree) {
  if (driver_.empty()) return {};
  owned_.keep_no_leases();
  CKPT_TRY(driver_.checkpoint(&tree));
  context_.phase("gpu checkpoint");
  return {};
}

Result<void> CaptureDevices::give_back(proc::FrozenTree* tree) { return driver_.give_back(tree); }

Result<void> CaptureDevices::attach() {
  CKPT_TRY(owned_.give_back());
  driver_.end_guard();
  return {};
}

void CaptureDevices::count_held() {
  if (held_since_us_ != 0) context_.stats().gpu_held_us += monotonic_us() - std::exchange(held_since_us_, 0);
}

Result<bool> CaptureDevices::copy_deferred() {
  CKPT_TRY_ASSIGN(const bool kept, owned_.copy_deferred());
  if (!owned_.empty()) context_.phase("gpu deferred copy");
  return kept;
}

void CaptureDevices::forget() { owned_.forget(), driver_.forget(); }

void CaptureDevices::count() {
  store::CaptureStats& stats = context_.stats();
  auto bytes = [](const capture::DevicePass& pass) { return pass.copied * capture::kDeviceChunk; };
  stats.gpu_bytes = owned_.bytes();
  stats.gpu_bytes_precopied = bytes(owned_.pre_copied()), stats.gpu_bytes_last = bytes(owned_.copied_last());
  stats.gpu_bytes_deferred = bytes(owned_.copied_deferred());
}

}  // namespace ckpt::engine
