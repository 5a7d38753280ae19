// The stop flag. Signals are turned into it at the edge; long work asks it between blocks and unwinds in the ordinary
// way.
#pragma once

#include <atomic>

#include "lib/base/result.h"

namespace ckpt {

class Cancel {
 public:
  void request() { flag_.store(true, std::memory_order_relaxed); }
  bool requested() const { return flag_.load(std::memory_order_relaxed); }
  /// kInterrupted once a stop was requested.
  Result<void> check() const {
    if (requested()) return fail(Code::kInterrupted, "", "interrupted");
    return {};
  }

 private:
  std::atomic<bool> flag_{false};
};

}  // namespace ckpt
