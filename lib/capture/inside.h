// What only a stopped thread tells: registers, and what must be asked by a system call of the target's own.
#pragma once

#include <vector>

#include "lib/base/result.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Fills `news` of a child of a frozen process, whose first thread asks for it without taking it.
Result<void> ask_for_news(const proc::Scratch& scratch, int parent, store::ProcessImage& child);

/// Fills the rest of `image` (threads' registers and private state, handlers, timers, bounds) of a frozen process whose
/// inventory was taken after the freeze. `placed`: whether mappings have NUMA policies (Inventory::placed). `xstates` gets each thread's extended state, parallel to image.threads.
Result<void> describe_inside(const proc::FrozenProcess& frozen, const proc::Scratch& scratch, bool placed,
                             store::ProcessImage& image, std::vector<std::vector<std::byte>>& xstates);

}  // namespace ckpt::capture
