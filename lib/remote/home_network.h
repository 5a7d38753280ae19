// The network that URLs are reached by: that of whoever asked for them, also in a worker that has entered another one.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::remote {

/// Remembers the network namespace that this process is in, for itself and its forks. To be called before it enters
/// another one, without other threads.
Result<void> remember_network();

/// While it lives this thread, and what it starts, is in the network namespace that was remembered. Where none was, or
/// the thread is there anyway, it does nothing. Ends the process where the thread cannot go back, which only a kernel
/// without memory has as an outcome. Needs CAP_SYS_ADMIN, as what has entered another one had.
class HomeNetwork {
 public:
  HomeNetwork();
  ~HomeNetwork();
  HomeNetwork(const HomeNetwork&) = delete;
  HomeNetwork& operator=(const HomeNetwork&) = delete;
  /// Whether the thread is where it should be.
  const Result<void>& there() const { return there_; }

 private:
  UniqueFd before_;  ///< none: there is nowhere to go back to
  Result<void> there_;
};

}  // namespace ckpt::remote
