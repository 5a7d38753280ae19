// The sockets of a process tree, described from outside through duplicates (pidfd_getfd). Nothing is consumed: queues
// are peeked at, and the few settings that peeking needs (SO_PEEK_OFF, SO_PASSCRED, IP_PKTINFO, TCP_REPAIR) are put
// back as they were before the call returns, whatever it returns; if ckpt is killed meanwhile, a small process of its
// own does it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/sock_diag.h"
#include "lib/state/inventory.h"
#include "lib/state/sockets/option_guard.h"
#include "lib/state/sockets/record.h"

namespace ckpt::capture {

/// One open file description of the tree that is a socket.
struct OpenSocket {
  UniqueFd fd;          ///< a duplicate
  int descriptor = -1;  ///< its index in the tree's list
  int pid = 0;          ///< a process that holds it
  std::string subject;  ///< "process 12 (nginx), descriptor 7"
};

struct SocketCaptureOptions {
  bool contents = true;          ///< false: only look for blockers; the tree may run meanwhile
  bool tcp_established = false;  ///< --tcp-established
  bool tcp_close = false;        ///< --tcp-close
  bool external_unix = false;    ///< --ext-unix-sk
};

/// Use: add every socket of the tree, run once. With contents, every process that holds one of them must be frozen.
class SocketCapture {
 public:
  /// Takes a descriptor found in flight; returns the index of its open file description in the tree's list. When it is
  /// a socket that the tree's list did not have, the callback also calls `add` for it (a duplicate of the descriptor).
  using TakeRight = std::function<Result<int>(UniqueFd)>;

  SocketCapture(const SocketCaptureOptions& options, TakeRight take_right)
      : options_(options), take_right_(std::move(take_right)) {}

  void add(OpenSocket socket) { open_.push_back(std::move(socket)); }
  /// Describes them all. What stands in the way is a blocker, not an error.
  Result<void> run();

  std::vector<store::Socket> sockets;            ///< in the order of `add`
  std::vector<std::vector<std::byte>> contents;  ///< parallel to sockets; content_size is set, content_offset is not
  std::vector<Blocker> blockers;
  std::vector<std::string> notes;

  /// Established connections among them, as indices into `sockets`: what TcpHold and the packet filter are for.
  std::vector<size_t> established() const;
  /// The duplicate that was added for `sockets[index]`.
  int fd(size_t index) const { return open_[index].fd.get(); }

 private:
  friend class SocketReader;
  friend class UnixLinks;
  void block(size_t index, std::string what, std::string flag = "");
  /// What is likely to be gone in a moment.
  void block_for_now(size_t index, std::string what, std::string flag = "");
  void note(size_t index, const std::string& what);
  Result<void> take_connection_again(size_t index);
  Result<void> match_connections();

  /// CAP_* over the network namespace, asked for once.
  bool has_right(int capability);
  /// Made when the first setting has to be changed; gone when `run` returns.
  Result<OptionGuard*> guard();

  SocketCaptureOptions options_;
  TakeRight take_right_;
  std::vector<OpenSocket> open_;
  std::optional<OptionGuard> guard_;
  std::map<int, bool> rights_;  ///< by number of the capability
  uint64_t namespace_cookie_ = 0;  ///< of ckpt's network namespace, where the kernel tells
  /// Of the network namespace, by inode; the last two are asked for when the first such socket is met.
  std::map<uint64_t, proc::UnixSocketInfo> unix_;
  std::map<std::pair<int, int>, std::map<uint64_t, int>> shutdowns_;  ///< by family and protocol
  std::optional<std::map<uint64_t, proc::PacketSocketInfo>> packet_;
};

}  // namespace ckpt::capture
