// Namespaces that ckpt itself must not be in while they are made: a user namespace, what belongs to it, and a control
// group namespace. A helper makes them, and is gone once there is something that holds them.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/cgroups/options.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

struct MakerOrders {
  std::map<std::string, bool> make;  ///< "user", "cgroup", and kinds that the user namespace owns
  int user = -1;                     ///< one to be used instead of a new one
  bool plants = false;               ///< the first process of the new pid namespace (tree/seed.h)
  bool moves = true;                 ///< between control groups; a dry run does not
  state::CgroupOptions cgroups;
};

/// What this process has to do with: it has entered the network, IPC, UTS namespaces and that of pids for its children.
struct MakerWork {
  UniqueFd user, cgroup;  ///< where they were made
  UniqueFd clocks;        ///< a time namespace, to be entered
  pid_t init = 0;         ///< the first process of the pid namespace
};

/// Ids, maps and groups are those of the image. Needs root's capabilities, and a process without other threads.
Result<MakerWork> make_by_helper(const store::TreeImage& tree, const MakerOrders& orders, ProgressSink& progress);

}  // namespace ckpt::restore
