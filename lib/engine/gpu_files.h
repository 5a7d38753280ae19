// GPUs' files in processes from which no driver takes them away.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/engine/device_hold.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

/// The driver's checkpoint takes a GPU's mappings and descriptors from a process that uses CUDA. From one that does not
/// it takes nothing: a child that was forked after the start of CUDA keeps its parent's, and so does a program that
/// asks GPUs by other ways. An obstacle for each such process that several looks at the tree agree on; a child between
/// fork and exec is none. `running`: `look_at_running` of `root` with `options`; `devices` has found what it holds.
Result<std::vector<capture::Blocker>> find_gpu_files_that_stay(int root, const capture::InventoryOptions& options,
                                                               const capture::Inventory& running,
                                                               const DeviceHold& devices);

}  // namespace ckpt::engine
