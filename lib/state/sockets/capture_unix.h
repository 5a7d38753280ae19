// Unix sockets: what each is bound to, and which belong together.
#pragma once

#include <map>
#include <set>
#include <string>

#include "lib/state/sockets/capture.h"

namespace ckpt::capture {

inline constexpr int kTcpListen = 10;  // TCP_LISTEN, of unix_diag, too

/// What the socket itself tells: its file and its peer's credentials.
Result<void> take_unix_socket(int fd, store::Socket& socket);

/// What unix_diag tells of all of them together: states, peers, connections that wait to be accepted.
class UnixLinks {
 public:
  explicit UnixLinks(SocketCapture& all) : all_(all) {}
  Result<void> run();

 private:
  void link(size_t index, const proc::UnixSocketInfo& info);
  void link_peer(size_t index, const proc::UnixSocketInfo& info);
  void meet_outside(size_t index);
  bool is_of_pair(const store::Socket& socket) const;
  void check_datagrams(size_t index);
  Result<void> link_pending(size_t listener, const proc::UnixSocketInfo& info);

  SocketCapture& all_;
  std::map<uint64_t, size_t> by_inode_;
  std::set<uint64_t> waiting_;  ///< inodes of clients in some listener's queue
};

}  // namespace ckpt::capture
