// Jobs that do not fit on the GPUs side by side take turns: all but one are suspended.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/engine/device_hold.h"

namespace ckpt::engine {

struct Turn {
  int pid = 0;  ///< whose turn it is now
  uint64_t suspend_us = 0, resume_us = 0;
};

/// Each process, with all its descendants, has the GPUs for `quantum_us` and is suspended then, whether the others need
/// the room or not. One whose work does not end in the lock's time keeps its turn. Those that end drop out; returns
/// when one is left, which has the GPUs. However it ends, as many as there is room for are resumed; an error tells
/// which are not. `told`: each turn as it begins.
Result<void> timeslice(std::vector<int> pids, uint64_t quantum_us, const GpuOptions& options,
                       const std::function<void(const Turn&)>& told, const Cancel& cancel);

}  // namespace ckpt::engine
