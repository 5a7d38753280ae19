// A process that somebody else started, or one of our own, whose end is waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/restore.h"

namespace ckpt::engine {

/// Holds its pidfd: another process of the same number is never taken for it.
class WatchedProcess {
 public:
  /// Also one that has ended and is still a zombie. kNotFound: there is none.
  static Result<WatchedProcess> open(int pid);
  WatchedProcess(WatchedProcess&&) noexcept = default;
  WatchedProcess& operator=(WatchedProcess&&) noexcept = default;

  int pid() const { return pid_; }
  /// In clock ticks since boot: with the pid it names a process for good.
  uint64_t start_time() const { return start_time_; }
  const std::string& name() const { return name_; }
  /// Readable once it has ended.
  int fd() const { return pidfd_.get(); }
  bool has_ended() const;
  /// Also where it is a zombie that nobody waits for. How it ended: of a child of ours (which is reaped by that) on any
  /// kernel; of others while they are zombies, and from Linux 6.15 on afterwards. Nothing: nobody can say.
  std::optional<ProcessEnd> end() const;
  void signal(int number) const;
  /// One watcher at a time: kBusy. Held until this object or this process goes.
  Result<void> lock();

 private:
  WatchedProcess() = default;
  int pid_ = 0;
  uint64_t start_time_ = 0;
  std::string name_;
  UniqueFd pidfd_, lock_;
};

}  // namespace ckpt::engine
