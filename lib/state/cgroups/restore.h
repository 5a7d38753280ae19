// Back into the control groups.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/state/cgroups/options.h"

namespace ckpt::restore {

/// The hierarchies that are mounted where ckpt can see them.
class CgroupMounts {
 public:
  static Result<CgroupMounts> find();
  static CgroupMounts parse(std::string_view mountinfo);

  /// From now on `moved` is as `options` want it; `first`: the groups of the first process.
  void rearrange(const state::CgroupOptions& options, const std::vector<store::Cgroup>& first);
  /// Processes stay where they are.
  bool leaves() const { return leaves_; }
  /// The group that takes the place of one that was recorded.
  store::Cgroup moved(const store::Cgroup& group) const;
  /// The folder of a group, "" when its hierarchy is not mounted or does not reach that far.
  std::string folder_of(const store::Cgroup& group) const;

 private:
  struct Mount {
    bool version_2 = false;
    std::vector<std::string> options;  ///< of the file system: controllers, "name=..."
    std::string root, path;
  };
  struct Move {
    std::string controllers, from, to;
  };
  std::vector<Mount> mounts_;
  std::vector<Move> moves_;
  bool leaves_ = false;
};

/// Puts the process `pid` (all its threads), which stands still under ptrace, into `groups`; where it already is
/// nothing is done. Early, so that what it gets from then on is charged there. A group that is gone is made again,
/// without the limits that somebody had given it; that, and each one that it cannot be put into (frozen, full, out of
/// reach) is a note. Never fails the restore.
void join_cgroups(const CgroupMounts& mounts, int pid, const std::vector<store::Cgroup>& groups,
                  ProgressSink& progress);
/// The same for one thread whose groups differ from its leader's.
void join_cgroups_alone(const CgroupMounts& mounts, int pid, int tid, const std::vector<store::Cgroup>& groups,
                        ProgressSink& progress);

}  // namespace ckpt::restore
