// Device memory of an agent's that is made again, at the same addresses and with the same content, where the driver
// would refuse it as it is.
#pragma once

#include <vector>

#include "lib/device/target.h"
#include "lib/engine/device_hold.h"

namespace ckpt::engine {

/// Before the driver's checkpoint of whole processes, where nothing is offloaded: their agents make all memory the
/// processes' own again. kBusy: GPU work was not done in time.
Result<void> renew_memory(const std::vector<int>& pids, const GpuOptions& options);

/// Before memory is offloaded: what cannot be exported, because the driver restored it or another process made it, is
/// renewed, in a short stop where there is such. The bytes of it.
Result<uint64_t> make_exportable(device::Target& target, uint64_t timeout_us);

}  // namespace ckpt::engine
