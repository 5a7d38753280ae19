// The TCP connections of a tree that is about to end: no packet passes from the moment their state is taken until they
// are restored, and closing them tells the peers nothing.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/packet_filter.h"
#include "lib/state/sockets/tcp_repair.h"

namespace ckpt::capture {

/// Dropping it lets the connections go on, unless `keep` was called.
class HeldConnections {
 public:
  /// Holds off the peers of `connections` that are not held yet. False: there was none. The tree may run; what it
  /// received before the call is part of its state.
  Result<bool> hold(const std::vector<UniqueFd>& connections);
  /// All go on. Not after `silence`.
  void let_go();
  /// The name of the filter for the image; empty: nothing is held.
  const std::string& filter() const { return id_; }
  /// Just before the processes are killed: the filter outlives ckpt, and their sockets say nothing when they close.
  Result<void> silence(const std::vector<UniqueFd>& connections);
  /// Once they are dead. Until then all can be undone.
  void keep();
  HeldConnections() = default;
  HeldConnections(const HeldConnections&) = delete;
  HeldConnections& operator=(const HeldConnections&) = delete;
  ~HeldConnections();

 private:
  using Pair = std::pair<proc::SocketName, proc::SocketName>;
  std::string id_;
  std::set<Pair> held_;
  std::optional<proc::PacketFilter> filter_;
  std::vector<proc::PacketFilter> replaced_;
  std::optional<TcpHold> silent_;
  bool stays_ = false;  ///< the filter would stay without us
};

}  // namespace ckpt::capture
