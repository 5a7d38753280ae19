// How a tracker of written files is found and spoken to: a unix socket in the common run folder, named by the process
// below which it looks. Asked "PID-START PID-START ...", it answers "ok" or "missed", then "DEVICE INODE NAME" of each
// file, each with a zero byte; "ok" alone where none of the processes is one of its own.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::state {

inline constexpr const char *kNothingMissed = "ok", *kSomethingMissed = "missed";
inline constexpr const char* kTrackerSocket = "track-";  ///< PID-START follows

/// "PID-START": no other process will ever have it, whatever has become of this one.
Result<std::string> name_of_process(int pid);
/// Of the tracker of the processes below this one.
Result<std::string> name_of_tracker(int root);

/// The names of all that are in the folder, those of trackers that were killed included.
std::vector<std::string> trackers_in(int folder);
/// Takes away those of trackers that were killed, and whose first process has ended: one that lives may have others
/// left.
void remove_old_trackers(int folder);

/// A socket that is listened at; `sys_errno` of the error tells.
Result<UniqueFd> listen_as_tracker(int folder, const std::string& name);
/// Connected to a tracker. Negative: -errno; ECONNREFUSED where it was killed.
UniqueFd connect_to_tracker(int folder, const std::string& name, int flags);

bool send_all(int socket, const std::string& text);

}  // namespace ckpt::state
