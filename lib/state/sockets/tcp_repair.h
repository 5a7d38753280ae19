// TCP_REPAIR on live connections: while it is on, the kernel neither sends nor acknowledges for the socket's owner,
// queues can be read and a close says nothing to the peer. Needs CAP_NET_ADMIN.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/sockets/option_guard.h"

namespace ckpt::capture {

/// One socket in repair mode for as long as this lives. Leaving sends nothing (TCP_REPAIR_OFF_NO_WP) and puts back
/// SO_REUSEADDR, which the kernel clears on the way. If ckpt dies meanwhile, the guard does both.
class RepairMode {
 public:
  static constexpr size_t kSlots = 2;  ///< of the guard
  /// `fd` stays the caller's; it and the guard must outlive this.
  static Result<RepairMode> enter(OptionGuard& guard, int fd);
  RepairMode(RepairMode&& other) noexcept = default;
  RepairMode& operator=(RepairMode&&) = delete;
  ~RepairMode();
  /// The socket stays in repair mode.
  void keep();

 private:
  struct Entered {
    OptionGuard* guard;
    int fd, reuse;
    size_t slots[kSlots];
  };
  explicit RepairMode(std::unique_ptr<Entered> entered) : entered_(std::move(entered)) {}
  void forget();
  std::unique_ptr<Entered> entered_;
};

/// For a dump that ends the tree: every connection in repair mode just before the kill, so that closing tells the peers
/// nothing. Two-phase: `keep` once the processes are dead, otherwise the destructor puts all back. The duplicates it
/// holds must be closed (destroy it) only after the processes have ended: the last close of a socket counts.
class TcpHold {
 public:
  static Result<TcpHold> enter(const std::vector<int>& fds);
  void keep();

 private:
  explicit TcpHold(OptionGuard guard) : guard_(std::make_unique<OptionGuard>(std::move(guard))) {}
  std::unique_ptr<OptionGuard> guard_;
  std::vector<UniqueFd> fds_;
  std::vector<RepairMode> modes_;  ///< destroyed before what they refer to
};

}  // namespace ckpt::capture
