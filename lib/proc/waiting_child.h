// A child of ckpt's that becomes something and then only exists, for others to be compared with it, or works.
#pragma once

#include <functional>
#include <utility>

#include "lib/base/result.h"

namespace ckpt::proc {

class WaitingChild {
 public:
  /// `become` runs in the child, a copy of a process that may have threads: plain system calls only. kPermission:
  /// it returned false. kUnsupported: children would be in another pid namespace. The child ends with the thread that
  /// calls this, or when `work` is over, where there is any.
  static Result<WaitingChild> start(const std::function<bool()>& become, const std::function<void()>& work = {});
  WaitingChild(WaitingChild&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  WaitingChild& operator=(WaitingChild&&) = delete;
  ~WaitingChild();
  /// Waits for the end of one whose work is over, or is about to be.
  void join();
  int pid() const { return pid_; }

 private:
  explicit WaitingChild(int pid) : pid_(pid) {}
  int pid_;
};

}  // namespace ckpt::proc
