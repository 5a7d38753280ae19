// Scripts of the user's that are run at certain points of a dump or a restore (--action-script), and the byte that
// tells a waiting program how far ckpt is (--status-fd).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::engine {

struct Actions {
  std::vector<std::string> scripts;  ///< programs, run one after the other at each point
  int status_fd = -1;
  /// Called at each point, before the scripts. An error is the point's.
  std::function<Result<void>(const char* action, int pid)> notify;

  /// kUsage: the status descriptor is not open, or not for writing. Before anything is opened, which could take its
  /// number.
  Result<void> check() const;
  /// Runs every script with CKPT_ACTION=`action`, CKPT_PID and CKPT_IMAGE_DIR in its environment (and criu's names of
  /// them), its standard output on ckpt's standard error. kMismatch: one of them did not end with 0. A request to end
  /// ends the script.
  Result<void> run(const char* action, int pid, const std::filesystem::path& image, const Cancel& cancel) const;
  /// Writes one zero byte to the status descriptor and closes it.
  void ready() const;
};

}  // namespace ckpt::engine
