// A restore in a pid namespace of its own, for numbers that are taken outside (restore --new-pidns).
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>

#include "lib/base/result.h"

namespace ckpt::engine {

struct PidNamespaceOptions {
  int highest = 0;      ///< number of the image; ckpt's own processes take others
  bool detach = false;  ///< return once `work` has, else when the namespace's last process has ended
  std::function<void()> drop = [] {};  ///< called in those of ckpt's processes that only wait: what `work` alone needs
};

/// Runs `work` in a child that lives in a new pid namespace, and in a mount namespace whose /proc shows it; what `work`
/// starts lives there too. A small process of ckpt's is number 1: it reaps, and passes signals on to `work`. Returns
/// what `work` returned. When that is not 0 nothing is left, but for what a detached `work` had let go when it was
/// killed; a detached namespace ends with its last process. Needs CAP_SYS_ADMIN. Call it from a process without other
/// threads.
Result<int> run_in_pid_namespace(const PidNamespaceOptions& options, const std::function<int()>& work);

/// A mount namespace of the caller's own, a copy, whose /proc is of the pid namespace that it is in. The host's
/// unmounting reaches it, for a daemon of ckpt's may stay there.
Result<void> mount_own_proc();

/// The next processes of the caller's pid namespace get numbers above those of an image, or, where too few are left
/// there, the lowest. Needs CAP_SYS_ADMIN in the namespace, and its /proc.
Result<void> number_processes_above(int highest);

/// From here on `number_outside` knows numbers as whoever sees the /proc of now.
Result<void> remember_outer_proc();

/// The signals that `relay_signals` passes on, and SIGCHLD.
sigset_t relayed_signals();
/// Blocks them; returns the mask of before.
sigset_t block_relayed_signals();
/// Waits for a child, and passes on to it what is sent to ckpt. Its exit code, or 128 and the signal that ended it.
int relay_signals(pid_t child);

/// The number outside of a process of the namespace that `run_in_pid_namespace` made for the caller; the same number
/// for any other caller.
int number_outside(int pid);

}  // namespace ckpt::engine
