#include "lib/flash/background.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace ckpt::flash {

Result<void> Background::open() {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return sys_error("eventfd", "cannot make");
  return {};
}

void Background::post(std::function<void()> result) {
  {
    std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Background::take_results() {
  uint64_t count;
  (void)!::read(wake_.get(), &count, sizeof count);
  std::vector<std::function<void()>> results;
  {
    std::lock_guard lock(mutex_);
    results.swap(results_);
  }
  for (auto& result : results) result();
  workers_.remove_if([](Worker& worker) {
    if (!worker.done->load()) return false;
    worker.thread.join();
    return true;
  });
}

void Background::join() {
  for (Worker& worker : workers_) worker.thread.join();
  workers_.clear();
}

}  // namespace ckpt::flash
