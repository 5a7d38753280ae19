// How ckpt's own helpers are told from other processes: tracking daemons (lib/memory/tracking_daemon.h), which may be
// asked to leave their number to a process that needs it, and tidiers (lib/engine/tidier.h).
#pragma once

#include <sys/stat.h>

#include <csignal>
#include <string>

namespace ckpt::proc {

inline constexpr const char *kTrackingDaemonName = "ckpt-tracking", *kTidierName = "ckpt-tidier";
/// It goes on under another number, in a session of that number, and the old one is free.
inline constexpr int kMoveSignal = SIGUSR1;

inline bool runs_this_program(int pid) {
  struct stat ours{}, theirs{};
  return ::stat("/proc/self/exe", &ours) == 0 &&
         ::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &theirs) == 0 && ours.st_dev == theirs.st_dev &&
         ours.st_ino == theirs.st_ino;
}

/// `comm`: of process `pid`, as it was just read.
inline bool is_own_helper(int pid, const std::string& comm) {
  return (comm == kTrackingDaemonName || comm == kTidierName) && runs_this_program(pid);
}

}  // namespace ckpt::proc
