// Where things lie: the socket of a checkpoint folder's agent.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::flash {

/// A folder, open, and the socket's name in it: what bind and connect are given is a short path below /proc/self/fd.
struct SocketPlace {
  UniqueFd folder;
  std::string name;
  std::string shown;  ///< for people
  std::string address() const { return "/proc/self/fd/" + std::to_string(folder.get()) + "/" + name; }
};

/// `socket` where it is not empty, else one in the run folder that is named after `directory`, which exists: all who
/// name the same folder find the same agent. kNotFound, kPermission: the folder.
Result<SocketPlace> find_socket(const std::string& directory, const std::string& socket);

}  // namespace ckpt::flash
