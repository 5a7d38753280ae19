// Which control groups restored processes are put into.
#pragma once

#include <vector>

#include "lib/state/cgroups/record.h"

namespace ckpt::state {

struct CgroupOptions {
  bool leave = false;  ///< they stay in those of ckpt
  /// Takes the place of the group that the first process was in, by controller; those of "*" in any other hierarchy.
  std::vector<store::Cgroup> roots;
};

}  // namespace ckpt::state
