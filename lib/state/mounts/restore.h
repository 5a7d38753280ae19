// A new mount namespace, with the mounts that an image says.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/mounts/options.h"
#include "lib/state/mounts/record.h"

namespace ckpt::restore {

/// A mount namespace of the tree that is there.
struct MadeMounts {
  const store::Mounts* mounts = nullptr;
  int handle = -1;
};

/// In the process that restores, which is in the other new namespaces already, has its caller's mount namespace and
/// no other threads: makes the namespace. Nothing of it can be seen outside, and it goes with this process where nobody
/// else has it by then. `others`: those of the tree that were made before. kUnsupported: mounts for which there is no
/// way; kMismatch: a folder that is not what it was.
/// `boot_id`: of the host when the image was taken.
Result<state::MountNamespace> make_mount_namespace(const store::Mounts& mounts, const std::string& boot_id,
                                                   const state::MountOptions& options,
                                                   const std::vector<MadeMounts>& others = {});

}  // namespace ckpt::restore
