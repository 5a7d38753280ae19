// ckpt's work on a process that ckpt itself restored into a pid namespace of its own (restore --new-pidns), asked for
// from outside.
#pragma once

#include <functional>
#include <optional>

#include "lib/base/result.h"

namespace ckpt::engine {

struct Beside {
  int init = 0;    ///< the namespace's first process, by its number here
  int inside = 0;  ///< the number that the process has there
};

/// Nothing: the process is where ckpt is, or in namespaces that ckpt did not make (those of a container).
Result<std::optional<Beside>> find_beside(int pid);

/// Runs `work` in a child that lives in the process's pid namespace and sees its /proc; files are where they are here.
/// Returns what `work` returned. The namespace stays for as long as `work` takes, also when its last process ends. Call
/// it from a process without other threads.
Result<int> run_beside(const Beside& there, const std::function<int()>& work);

}  // namespace ckpt::engine
