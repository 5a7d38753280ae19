// Files of /proc/PID, which can be opened only once the processes are there.
#pragma once

#include "lib/base/result.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Those of the process with this index, by the process itself.
Result<void> open_proc_files(const store::TreeImage& tree, int process, Child& child);

}  // namespace ckpt::restore
