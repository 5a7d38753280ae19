// The first process of a pid namespace. Nothing can be made in a namespace before that, so what an image's process 1 is
// to become exists before the worker that restores it: as the seed, which waits, and then takes over what the worker
// would have handed to a child.
#pragma once

#include <sys/types.h>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/tree/restorer_area.h"

namespace ckpt::restore {

/// For this process and those that it forks: the seed listens to the worker there. The seed's own end.
Result<UniqueFd> open_seed_channel();
/// In a process that has unshared its pid namespace and has no threads: makes the seed, as its child (`sibling`: as its
/// parent's). It ends with its parent, until it is released. Its number here.
Result<pid_t> plant_seed(UniqueFd end, bool sibling);
/// Whether a seed waits for this process, the worker that was forked afterwards.
bool has_seed();
/// In the worker: it has what the worker has, descriptors and the area, and can be attached. One that was born in
/// another user namespace may not take them itself, and is sent them.
Result<void> raise_seed(const RestorerArea& area);

}  // namespace ckpt::restore
