// What only a stopped thread tells: registers, and what must be asked by a system call of the target's own.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/state/inventory.h"
#include "lib/state/landlock/capture.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Fills the rest of process number `index` of `tree` (threads' registers and private state, handlers, timers, bounds),
/// which is frozen, and `wait_status` of its children. `found`: the inventory that was taken of the tree after the
/// freeze. `xstates` gets each thread's extended state, parallel to its threads. `outsiders`: null where it is known
/// that no thread is in a Landlock domain. `notes` gets what will be lost, or may be.
Result<void> describe_inside(const proc::FrozenProcess& frozen, const proc::ParasiteArea& area, const Inventory& found,
                             store::TreeImage& tree, size_t index, std::vector<std::vector<std::byte>>& xstates,
                             const Outsiders* outsiders = nullptr, std::vector<std::string>* notes = nullptr);

}  // namespace ckpt::capture
