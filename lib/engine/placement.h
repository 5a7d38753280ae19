// In which namespaces a restore makes the processes: ckpt's own, those of a running process, or new ones as the image
// says.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/state/cgroups/options.h"
#include "lib/state/mounts/options.h"
#include "lib/state/network/options.h"
#include "lib/store/image.h"

namespace ckpt::engine {

struct Placement {
  int into = 0;                                 ///< all namespaces of this process; 0: of none
  std::map<std::string, std::string> join;      ///< by kind, as /proc/PID/ns has them: the file of one to join
  state::MountOptions mounts;                   ///< of a new mount namespace
  state::NetworkOptions network;                ///< of a new network namespace
  state::CgroupOptions cgroups;                 ///< of the restore that is to run there
  bool detach = false;
  bool dry_run = false;  ///< outside nothing is made, not for a moment either
  bool sibling = false;  ///< process 1 of a new pid namespace becomes a child of this process's parent
};

/// Where each kind comes from.
struct NamespacePlan {
  std::map<std::string, std::string> join;  ///< by kind: files below /proc, or as given
  std::map<std::string, bool> make;         ///< by kind: a new one
  std::string boot_id;                      ///< of the host of the image
  bool makes_further = false;               ///< those that are not the first process's
  bool makes_init = false;                  ///< the image's first process is process 1 of a new pid namespace
  bool has_user() const { return make.count("user") != 0 || join.count("user") != 0; }
  bool empty() const { return join.empty() && make.empty() && !makes_further; }
};
/// kUsage, kNotFound, kUnsupported: an image whose namespaces cannot be made, a process that is not there.
Result<NamespacePlan> plan_namespaces(const store::Manifest& manifest, const Placement& placement);

struct Placed {
  int code = 0;
  int init = 0;  ///< process 1 of a new pid namespace, by its number here: it runs as a child of this process; 0: none
};
/// Runs `work` in a child that is in these namespaces, with a copy of ckpt's own mount namespace as in beside.h; what
/// it makes is in the planned one. What `work` leaves where it does not return 0 ends. Needs CAP_SYS_ADMIN. Call it
/// from a process without other threads: it joins namespaces, too.
Result<Placed> run_placed(const NamespacePlan& plan, const Placement& placement, const store::TreeImage& tree,
                          const std::function<int()>& work, ProgressSink& progress);

}  // namespace ckpt::engine
