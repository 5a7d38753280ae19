// The mounts of a tree that has a mount namespace of its own (namespaces/entered.h).
#pragma once

#include "lib/state/mounts/memory_files.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

/// Fills Namespaces::mounts: what can be seen, with the files of what is in memory and nowhere outside. Of a frozen
/// tree Inventory::memory_files, too.
Result<void> inventory_mounts(Walk& walk);

/// The same of a further mount namespace, which this thread looks into (UnderRoot). `others`: those of the tree that
/// were taken before, which have what both show.
Result<void> inventory_further_mounts(Walk& walk, const std::vector<const store::Mounts*>& others, store::Mounts& out);

}  // namespace ckpt::capture
