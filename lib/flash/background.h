// Work beside a loop: threads whose results the loop takes when it is woken.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"

namespace ckpt::flash {

class Background {
 public:
  Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() { join(); }

  Result<void> open();
  /// Readable where results wait.
  int fd() const { return wake_.get(); }

  /// Without room for a thread it is done here and now: everybody waits.
  template <class Work>
  void start(Work work) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    auto run = [this, work = std::move(work), done]() mutable {
      work();
      done->store(true);
      post([] {});  // whoever waits joins it
    };
    std::thread thread;
    if (start_thread(thread, run))
      workers_.push_back({std::move(thread), done});
    else
      run();
  }
  /// From any thread: to be done by the loop.
  void post(std::function<void()> result);
  /// By the loop.
  void take_results();
  /// What still runs is waited for.
  void join();

 private:
  struct Worker {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> results_;
  std::list<Worker> workers_;
};

}  // namespace ckpt::flash
