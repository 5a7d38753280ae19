// A fixed set of threads over a bounded queue: whoever submits too fast waits, so memory stays bounded.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/result.h"

namespace ckpt {

/// Jobs return Result<void>; the first error wins, later jobs are dropped. `finish` waits for all and returns that error.
/// A job that throws has failed (kNoRoom, kBug). The destructor drops what has not started and joins. Signals are blocked
/// in the workers.
class WorkerPool {
 public:
  using Job = std::function<Result<void>()>;

  /// threads 0: one per core. queue_limit 0: twice the threads.
  explicit WorkerPool(unsigned threads = 0, size_t queue_limit = 0);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Blocks while the queue is full. False once a job failed: stop submitting and call `finish`.
  bool submit(Job job);
  Result<void> finish();
  /// How many threads a pool asked for so many has.
  static unsigned threads_for(unsigned asked) { return asked != 0 ? asked : std::max(1u, std::thread::hardware_concurrency()); }
  unsigned threads() const { return static_cast<unsigned>(workers_.size()); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  size_t limit_;
  size_t running_ = 0;
  bool stopping_ = false;
  bool failed_ = false;
  Error error_;
  std::vector<std::thread> workers_;
};

}  // namespace ckpt
