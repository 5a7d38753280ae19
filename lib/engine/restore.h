// restore: an image becomes running processes again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/task_fate.h"
#include "lib/engine/actions.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/together.h"
#include "lib/state/cgroups/options.h"
#include "lib/state/external/options.h"
#include "lib/state/sockets/map_addresses.h"

namespace ckpt::restore {
class CommonMemory;
}

namespace ckpt::engine {

struct RestoreOptions {
  std::filesystem::path image;
  std::filesystem::path pidfile;  ///< empty: none
  bool new_pid_namespace = false; ///< the caller runs the restore in one (see pid_namespace.h)
  bool placed = false;            ///< the caller runs the restore where placement.h says
  bool detach = false;            ///< ckpt will not wait for the process
  bool sibling = false;           ///< it becomes a child of ckpt's parent
  state::CgroupOptions cgroups;
  state::ExternalOptions external;
  bool lazy = false;              ///< the processes run before their memory is in
  const restore::CommonMemory* common = nullptr;  ///< of several copies (copies.h); null: none
  /// Descriptors of the root that others of ckpt's take the place of, wherever they lead: by number.
  std::map<int, int> outputs;
  std::vector<restore::MappedAddress> addresses;  ///< that are others than they were
  Together* together = nullptr;                   ///< many ckpts restore one job; null: this one is alone
  std::vector<std::string> allow_changed;  ///< paths and patterns of files that may be others than they were
  bool force_files = false;         ///< content that the image has of files is put back over newer ones, too
  std::filesystem::path files_root; ///< it is put there instead, below this absolute folder; empty: where it was
  std::filesystem::path
      lazy_log;  ///< what the lazy-pages daemon has to say; empty: stderr while ckpt is there, else the system log
  std::string label_profile;  ///< "apparmor:NAME", "selinux:CONTEXT" in place of security labels that there were
  bool drop_labels = false;  ///< processes may get ckpt's own security label where theirs was another one
  TaskFate* lazy_fate = nullptr;  ///< what becomes of it, in shared memory; null: nobody asks
  GpuOptions gpu;
  Actions
      actions;  ///< "pre-restore": nothing is made yet; "post-restore": all is made and stands; "post-resume": it runs
  /// Called once all is made and stands still, right before it is let go: where it fails nothing is left. With the
  /// numbers that the first process has where it lives, and outside.
  std::function<Result<void>(int pid, int pid_outside)> may_run;
  std::function<void()> runs;  ///< called the moment it has been let go
  bool trust = false;    ///< also an image that another user owns or may write, with every right that it asks for
  bool rights_of_owner = false;  ///< this process has given up root's for those of the image's owner
  bool dry_run = false;  ///< only find out whether it could be done
};

struct RestoreReport {
  int pid = 0;
  int pid_outside = 0;  ///< in the namespace of ckpt's caller (see pid_namespace.h); 0 in a dry run
  std::string comm;
  uint64_t processes = 0, threads = 0, mappings = 0, descriptors = 0;
  uint64_t pages = 0, bytes = 0;                            ///< memory filled; in a dry run: what the image holds
  uint64_t bytes_on_demand = 0;                             ///< size of the mappings that are filled while it runs
  std::vector<std::pair<std::string, uint64_t>> phases_us;  ///< open, check, create, map, fill, state, gpu, release
  uint64_t total_us = 0;
};

/// How a process ended.
struct ProcessEnd {
  int code = 0;    ///< its exit code
  int signal = 0;  ///< 0: it was not killed
  int shell_status() const { return signal != 0 ? 128 + signal : code; }
};

/// On success the process runs (unless dry_run) as a child of this one. On failure nothing of it is left, and the Error
/// says what was in the way. The pid file is there, complete, before the process takes its first step.
Result<RestoreReport> restore(const RestoreOptions& options, ProgressSink& progress, const Cancel& cancel);

/// Stands in for the restored process: passes on signals that are not ignored here, follows it into a stop, gives it
/// the terminal where it has a process group of its own.
Result<ProcessEnd> supervise(int pid, const Cancel& cancel);

}  // namespace ckpt::engine
