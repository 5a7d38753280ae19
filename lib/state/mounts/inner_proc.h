// The /proc of pid namespaces within that of a tree's first process.
#pragma once

#include <functional>

#include "lib/base/result.h"
#include "lib/state/mounts/record.h"
#include "lib/state/tree/child.h"

namespace ckpt::restore {

/// A "proc" shows the pid namespace of whoever opens it, and a further one begins with its first process. Mounts are
/// made before that with the /proc of ckpt's instead (make_mount_namespace), which gives way here; what lay on it lies
/// on the right one then. `handle`: of the mount namespace; `first_of`: the first process of a pid namespace.
Result<void> put_inner_proc(const store::Mounts& mounts, int handle, const std::function<Child*(int)>& first_of);

}  // namespace ckpt::restore
