// A new mount namespace, with the mounts that an image says.
#pragma once

#include "lib/base/result.h"
#include "lib/state/mounts/options.h"
#include "lib/state/mounts/record.h"

namespace ckpt::restore {

/// In the process that restores, which is in the other new namespaces already, has its caller's mount namespace and
/// no other threads: makes the namespace, and what is looked up for the processes is looked up there from then on
/// (files/tree_root.h). Nothing of it can be seen outside, and it goes with this process where nobody else has it by
/// then. kUnsupported: mounts for which there is no way; kMismatch: a folder that is not what it was.
/// `boot_id`: of the host when the image was taken.
Result<void> make_mount_namespace(const store::Mounts& mounts, const std::string& boot_id,
                                  const state::MountOptions& options);

}  // namespace ckpt::restore
