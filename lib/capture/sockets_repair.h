// TCP_REPAIR on live connections: while it is on, the kernel neither sends nor acknowledges for the socket's owner, queues
// can be read and a close says nothing to the peer. Needs CAP_NET_ADMIN.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::capture {

/// One socket in repair mode for as long as this lives. Leaving sends nothing (TCP_REPAIR_OFF_NO_WP) and puts back
/// SO_REUSEADDR, which the kernel clears on the way.
class RepairMode {
 public:
  /// `fd` stays the caller's and must outlive this.
  static Result<RepairMode> enter(int fd);
  RepairMode(RepairMode&& other) noexcept : fd_(std::exchange(other.fd_, -1)), reuse_(other.reuse_) {}
  RepairMode& operator=(RepairMode&&) = delete;
  ~RepairMode();
  /// The socket stays in repair mode.
  void keep() { fd_ = -1; }

 private:
  RepairMode(int fd, int reuse) : fd_(fd), reuse_(reuse) {}
  int fd_, reuse_;
};

/// For a dump that ends the tree: every connection in repair mode just before the kill, so that closing tells the peers
/// nothing. Two-phase: `keep` once the processes are dead, otherwise the destructor puts all back. The duplicates it
/// holds must be closed (destroy it) only after the processes have ended: the last close of a socket counts.
class TcpHold {
 public:
  static Result<TcpHold> enter(const std::vector<int>& fds);
  void keep();

 private:
  std::vector<UniqueFd> fds_;
  std::vector<RepairMode> modes_;  ///< destroyed before fds_
};

}  // namespace ckpt::capture
