// Files of /proc/PID, which can be opened only once the processes are there.
#pragma once

#include "lib/base/result.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Those of the process with this index, by the process itself. `inner`: those of the /proc of a further pid namespace,
/// which its mounts show; else the others.
Result<void> open_proc_files(const store::TreeImage& tree, int process, bool inner, Child& child);

}  // namespace ckpt::restore
