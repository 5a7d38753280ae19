// ckpt's work on processes that live in other namespaces than whoever asked for it: those of a container, of a service,
// or those that `restore --new-pidns` made.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::engine {

struct Beside {
  int pid = 0;                     ///< the process, by its number here
  int inside = 0;                  ///< the number that it has in its own pid namespace
  std::vector<std::string> kinds;  ///< of /proc/PID/ns that are others than ckpt's, and that can be entered
  std::vector<std::string> own;    ///< the links of ckpt's own: "uts:[4026531838]"
  bool in_ckpts_own = false;       ///< they were made by `restore --new-pidns`
};

/// Nothing: the process is where ckpt is. A user namespace is not entered (state/namespaces/user.h).
Result<std::optional<Beside>> find_beside(int pid);

/// Runs `work` in a child, the worker, that is in the process's pid, network, IPC, UTS and time namespaces. Its mount
/// namespace is a copy of ckpt's own, with a /proc of the process's pid namespace: what ckpt was told (an image, a
/// script) is where it was, and what the processes have is looked up under the root of theirs (files/tree_root.h). It
/// cannot be traced but with CAP_SYS_PTRACE. Returns what `work` returned.
///
/// Where `work` asks for the end of the namespace's first process (state::Entered::end_init), or ends processes with
/// which that one ends itself (may_end), the worker ends with it, or before it: then `ended` runs here, and the result
/// is 0. A namespace that `restore --new-pidns` made stays for as long as `work` takes, also when its last process
/// ends. Needs CAP_SYS_ADMIN. Call it from a process without other threads.
Result<int> run_beside(const Beside& there, const std::function<int()>& work, const std::function<void()>& ended);

}  // namespace ckpt::engine
