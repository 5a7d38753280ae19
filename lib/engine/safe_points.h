// Waiting until a tree has come to safe points of its own choosing (ckpt_safe_point of libckpt-flash).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/barrier.h"
#include "lib/engine/together.h"
#include "lib/proc/ptrace.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

struct SafePointOptions {
  bool wait = false;    ///< for the next one of each process
  bool agreed = false;  ///< for the same one of all, by the barrier
  int signal = 0;       ///< that the processes get once one is wanted of them; 0: none
};

/// The processes of a tree that have come to a safe point before. What is wanted of them is taken back by the
/// destructor; should ckpt be killed they go on by themselves after kSafePointPatienceMs.
class SafePoints {
 public:
  /// kUnsupported: no process has come to one.
  static Result<std::unique_ptr<SafePoints>> find(const std::vector<capture::Member>& members);
  SafePoints(const SafePoints&) = delete;
  SafePoints& operator=(const SafePoints&) = delete;
  ~SafePoints() { let_go(); }

  /// Returns once all wait at one. `together`: of a job; null: alone. kBusy: not within `timeout_us`; kNotFound: a
  /// process has ended.
  Result<void> reach(const SafePointOptions& options, uint64_t timeout_us, Together* together, const Cancel& cancel);
  /// Of the tree, frozen: all still wait, and go on once they run. kBusy: one has not waited.
  Result<void> leave_frozen();

 private:
  struct Point {
    int pid = 0;
    UniqueFd pidfd;  ///< so that its number cannot come to mean another one
    proc::RemoteAddress word{};
    uint64_t target = 0;
  };
  SafePoints() = default;
  Result<void> choose(bool agreed, uint64_t timeout_us, Together* together);
  static Result<void> write(const Point& point, size_t member, uint64_t value);
  Result<bool> is_early_enough() const;
  Result<bool> all_wait() const;
  Result<void> start_beating();
  void let_go();

  std::vector<Point> points_;
  std::thread beating_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  ///< under mutex_
};

}  // namespace ckpt::engine
