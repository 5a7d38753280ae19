// A fixed set of threads over a bounded queue: whoever submits too fast waits, so memory stays bounded.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/result.h"

namespace ckpt {

/// Jobs return Result<void>; the first error wins, later jobs are dropped. `finish` waits for all and returns that
/// error. A job that throws has failed (kNoRoom, kBug). The destructor drops what has not started and joins. Signals
/// are blocked in the workers.
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
  static unsigned threads_for(unsigned asked) {
    return asked != 0 ? asked : std::max(1u, std::thread::hardware_concurrency());
  }
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

/// A pool for `side_by_side`: with the thread that calls it there are as many as asked for. Empty where that is one.
inline void make_helpers(unsigned asked, std::optional<WorkerPool>& out) {
  if (const unsigned threads = WorkerPool::threads_for(asked); threads > 1) out.emplace(threads - 1);
}

/// Calls `take(i)`, which returns Result<void>, for each i below `count`: by this thread and all of the pool's, each of
/// which takes the next i by itself: handed out, small jobs would cost as much as they do. The error of the lowest i
/// that has one wins, whoever came to it first; `take` has been called for all below it. `pool` null: this thread
/// alone. Nobody else uses the pool meanwhile.
template <class Take>
Result<void> side_by_side(WorkerPool* pool, size_t count, Take take) {
  const size_t others = pool == nullptr || count < 2 ? 0 : std::min(count - 1, size_t{pool->threads()});
  std::atomic<size_t> next{0}, failed{count};
  std::vector<Result<void>> results(count);
  auto work = [&]() -> Result<void> {
    for (size_t i = next++; i < failed; i = next++) {
      results[i] = take(i);
      if (results[i]) continue;
      for (size_t lowest = failed; i < lowest && !failed.compare_exchange_weak(lowest, i);) {
      }
    }
    return {};
  };
  struct Wait {  // also where `take` throws: the others look at what is here
    WorkerPool* pool;
    ~Wait() {
      if (pool != nullptr) (void)pool->finish();
    }
  } wait{others == 0 ? nullptr : pool};
  for (size_t i = 0; i < others; ++i) (void)pool->submit(work);
  (void)work();
  Result<void> thrown = others == 0 ? Result<void>() : pool->finish();
  if (failed < count) return results[failed];
  return thrown;
}

}  // namespace ckpt
