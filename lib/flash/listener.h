// The agent's socket and the lock that makes it the only one of its folder.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/flash/place.h"

namespace ckpt::flash {

/// The lock is a file that stays: unlinking it would let two hold "the" lock. The socket goes with its owner.
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
  SocketPlace place_;
  UniqueFd lock_, socket_;
  bool bound_ = false;
};

}  // namespace ckpt::flash
