// The agent's socket and the lock that makes it the only one of its folder.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/flash/place.h"

namespace ckpt::flash {

/// The socket has its name once somebody listens. The lock counts while its file has its name: who takes it looks
/// again, so that its owner may take the file away. Both go with their owner; those of agents that were killed go when
/// another one begins in the run folder.
class Listener {
 public:
  Listener() = default;
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// kBusy: the folder has an agent already. kPermission, kUsage: the socket's place.
  Result<void> open(const std::string& directory, const std::string& socket);
  int fd() const { return socket_.get(); }

 private:
  std::string lock_name() const { return place_.name + ".lock"; }
  Result<void> take_lock(const std::string& directory);
  /// kUsage: somebody's file has the lock's name.
  Result<void> check_lock();
  /// Of an agent that was killed. kUsage: it is no socket.
  Result<void> remove_old_socket() const;

  SocketPlace place_;
  UniqueFd lock_, socket_;
  bool bound_ = false;  ///< it has its name
};

}  // namespace ckpt::flash
