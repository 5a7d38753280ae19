// The work itself: what a caller of criu asked for, by ckpt's engine.
#pragma once

#include <functional>

#include "cli/criu/images.h"
#include "cli/criu/log.h"
#include "cli/criu/options.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::cli::criu {

/// Told at each point of the work (criu's action scripts): "pre-dump", "post-restore", ...
using Notify = std::function<Result<void>(const char* action, int pid)>;

struct Task {
  Options options;
  Log& log;
  const Cancel& cancel;
  Notify notify;  ///< may be empty
  std::function<Result<void>(int master)> take_master;  ///< of a terminal whose master was outside; may be empty
};

/// Absolute folders, which must be there; work goes on in the work folder, where the log begins.
Result<void> enter_folders(Task& task);

/// "dump" or "pre-dump". `enter_folders` has been called. Call it from a process that `run_guarded` made.
Result<void> capture(Task& task, bool pre_dump);
struct Restored {
  int pid = 0;         ///< of the first process, by its number here
  int pid_inside = 0;  ///< by the number that it has for itself
  int processes = 0;
  int status = -1;  ///< its exit status, where a worker has waited for it already; -1: nobody has
  RestoreStatistics statistics;
};
/// The process runs when this returns.
Result<Restored> restore(Task& task);
/// What this host lacks, or whether a feature (empty: all that counts) is there; kMismatch: it is not.
Result<void> check(const std::string& feature);

}  // namespace ckpt::cli::criu
