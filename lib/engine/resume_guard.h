// A process that brings GPU state back should ckpt be killed: `ckpt resume --after`, started before anything is held.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::engine {

class ResumeGuard {
 public:
  ResumeGuard() = default;
  ResumeGuard(const ResumeGuard&) = delete;
  ResumeGuard& operator=(const ResumeGuard&) = delete;
  ~ResumeGuard() { end(); }

  /// `command` takes `--after PID --offloaded FD -p PID...`; empty: no guard. Does nothing where one runs already.
  Result<void> start(const std::vector<std::string>& command, const std::vector<int>& pids);
  /// Device memory that ckpt holds for allocation `id` of process `pid`: the guard holds it, too, and could attach it
  /// again.
  Result<void> hold(int pid, uint64_t id, int fd);
  /// Everything is as it was, or meant to stay as it is.
  void end();

 private:
  pid_t pid_ = 0;
  UniqueFd socket_;
};

/// What a guard was given, by its own end.
struct OffloadedMemory {
  int pid = 0;
  uint64_t id = 0;
  UniqueFd fd;
};
/// The next message on the socket; nothing: ckpt has let go of its end.
Result<bool> receive_offloaded(int socket, std::vector<OffloadedMemory>& out);

}  // namespace ckpt::engine
