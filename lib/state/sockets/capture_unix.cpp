#include "lib/state/sockets/capture_unix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <linux/un.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "lib/proc/procfs.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/sockets/capture_internal.h"

namespace ckpt::capture {

using store::Socket;
using store::SocketState;

namespace {

/// Without CAP_NET_ADMIN the file can only be looked for by its name.
Result<UniqueFd> open_file_of(int fd, const Socket& socket) {
  UniqueFd file(::ioctl(fd, SIOCUNIXFILE));
  if (file) return file;
  int error = errno;
  std::string path = proc::unix_name(socket.name);
  if (error == EPERM && path[0] == '/') file.reset(state::open_in_tree(path.c_str(), O_PATH | O_NOFOLLOW));
  if (!file && error == EPERM) {
    return Error(Code::kPermission, "socket",
                 fmt::format("is bound to {}, which only CAP_NET_ADMIN can find", proc::name_text(socket.name)));
  }
  if (!file) return sys_error(error, "socket", "cannot find the file that it is bound to");
  return file;
}

Result<void> take_file(int fd, Socket& socket) {
  CKPT_TRY_ASSIGN(UniqueFd file, open_file_of(fd, socket));
  struct stat st {
  }, there{};
  if (::fstat(file.get(), &st) != 0) return sys_error("socket", "cannot describe the file that it is bound to");
  std::array<char, PATH_MAX> path{};
  ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", file.get()).c_str(), path.data(), path.size());
  if (size < 0) return sys_error("socket", "cannot name the file that it is bound to");
  socket.file.path.assign(path.data(), static_cast<size_t>(size));
  socket.file.mode = st.st_mode & 07777, socket.file.uid = st.st_uid, socket.file.gid = st.st_gid;
  // The kernel appends " (deleted)"; another file may have come to the same place.
  bool is_there =
      state::stat_in_tree(socket.file.path, there, false) && there.st_dev == st.st_dev && there.st_ino == st.st_ino;
  socket.file.deleted = !is_there;
  return {};
}

Result<void> take_peer_credentials(int fd, Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return sys_error("socket", "cannot read its peer's credentials");
  if (peer.pid <= 0) return {};
  auto& out = socket.peer_credentials;
  out.pid = peer.pid, out.uid = peer.uid, out.gid = peer.gid;
  size = 0;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &size) == 0 || errno != ERANGE) return {};
  out.groups.resize(size / sizeof(gid_t));
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, out.groups.data(), &size) != 0)
    return sys_error("socket", "cannot read its peer's groups");
  return {};
}

}  // namespace

Result<void> take_unix_socket(int fd, Socket& socket) {
  if (!socket.name.empty() && !proc::is_abstract(socket.name)) CKPT_TRY(take_file(fd, socket));
  return take_peer_credentials(fd, socket);
}

Result<void> UnixLinks::run() {
  for (size_t i = 0; i < all_.sockets.size(); ++i) {
    if (all_.sockets[i].family == AF_UNIX) by_inode_[all_.sockets[i].inode] = i;
  }
  for (const auto& [inode, index] : by_inode_) {
    if (all_.unix_.count(inode) != 0) continue;
    if (auto found = proc::read_unix_socket(inode)) all_.unix_.emplace(inode, std::move(*found));
  }
  for (const auto& [inode, index] : by_inode_) {
    auto info = all_.unix_.find(inode);
    if (info != all_.unix_.end()) waiting_.insert(info->second.pending.begin(), info->second.pending.end());
  }
  for (const auto& [inode, index] : by_inode_) {
    auto info = all_.unix_.find(inode);
    if (info == all_.unix_.end())
      all_.block(index, "a unix socket that the kernel does not list here: it is of another network namespace");
    else
      link(index, info->second);
  }
  for (const auto& [inode, index] : by_inode_) {
    auto info = all_.unix_.find(inode);
    if (info != all_.unix_.end() && info->second.state == kTcpListen) CKPT_TRY(link_pending(index, info->second));
  }
  for (const auto& [inode, index] : by_inode_) check_datagrams(index);
  return {};
}

/// Both were made by one socketpair call, and are still connected to each other.
bool UnixLinks::is_of_pair(const Socket& socket) const {
  if (socket.state != SocketState::kConnected || socket.peer < 0) return false;
  const Socket& peer = all_.sockets[static_cast<size_t>(socket.peer)];
  const bool mutual = peer.state == SocketState::kConnected && peer.peer >= 0 &&
                      &all_.sockets[static_cast<size_t>(peer.peer)] == &socket;
  return mutual && socket.peer_credentials.pid != 0 && socket.peer_credentials == peer.peer_credentials;
}

/// A name is how restore reaches a datagram socket, or the other end of its pair.
void UnixLinks::check_datagrams(size_t index) {
  const Socket& socket = all_.sockets[index];
  if (socket.type != SOCK_DGRAM || is_of_pair(socket)) return;
  const bool orphan = socket.state == SocketState::kPeerGone && proc::unix_name(socket.peer_name).empty();
  if (socket.name.empty() && !socket.messages.empty() && !orphan)
    all_.block_for_now(index, "a unix datagram socket without a name whose unread messages nobody could send again");
  if (socket.state == SocketState::kConnected && all_.sockets[static_cast<size_t>(socket.peer)].name.empty())
    all_.block(index, "a unix datagram socket that is connected to one without a name, which is not its pair");
}

void UnixLinks::link(size_t index, const proc::UnixSocketInfo& info) {
  Socket& socket = all_.sockets[index];
  socket.shutdown = info.shutdown;
  if (info.state == kTcpListen) {
    socket.state = SocketState::kListening;
    socket.backlog = static_cast<int>(info.backlog);
  } else if (info.has_peer) {
    link_peer(index, info);
  }
}

void UnixLinks::link_peer(size_t index, const proc::UnixSocketInfo& info) {
  Socket& socket = all_.sockets[index];
  auto peer = by_inode_.find(info.peer);
  if (info.peer != 0 && peer != by_inode_.end()) {
    socket.state = SocketState::kConnected;
    socket.peer = static_cast<int>(peer->second);
  } else if (info.peer != 0) {
    meet_outside(index);
  } else if (waiting_.count(socket.inode) != 0) {
    socket.state = SocketState::kPending;
  } else if (socket.type == SOCK_DGRAM || info.shutdown == 3) {
    socket.state = SocketState::kPeerGone;
  } else {
    meet_outside(index);  // waits in the queue of a listening socket outside
  }
}

void UnixLinks::meet_outside(size_t index) {
  Socket& socket = all_.sockets[index];
  bool named = !proc::unix_name(socket.peer_name).empty();
  std::string who = named ? " (" + name_text(socket.peer_name) + ")" : "";
  if (!all_.options_.external_unix) {
    all_.block(index, fmt::format("a unix socket whose peer{} is outside the process tree", who), "--ext-unix-sk");
    return;
  }
  socket.state = named ? SocketState::kExternal : SocketState::kPeerGone;
  all_.note(index, named ? "restore connects it anew to " + name_text(socket.peer_name)
                         : "its peer outside has no name to connect to: it will find its peer gone");
}

Result<void> UnixLinks::link_pending(size_t listener, const proc::UnixSocketInfo& info) {
  Socket& socket = all_.sockets[listener];
  for (uint64_t inode : info.pending) {
    auto client = by_inode_.find(inode);
    if (inode == 0) {
      all_.block_for_now(listener,
                         "a listening unix socket with a connection that was closed before it was accepted: what it "
                         "sent cannot be read");
    } else if (client == by_inode_.end()) {
      if (all_.options_.external_unix)
        all_.note(listener, "a connection from outside that has not been accepted yet is lost");
      else
        all_.block(listener, "a listening unix socket with a connection from outside that has not been accepted yet",
                   "--ext-unix-sk");
    } else {
      auto sent = all_.unix_.find(inode);
      if (sent != all_.unix_.end() && sent->second.send_queue != 0)
        all_.block_for_now(client->second,
                   "a unix socket that has sent data to a listening socket that has not accepted it yet");
      socket.pending.push_back(static_cast<int>(client->second));
      CKPT_TRY_ASSIGN(proc::Status owner,
                      proc::read_status(all_.open_[client->second].pid, all_.open_[client->second].pid));
      all_.sockets[client->second].connector = {
          all_.open_[client->second].pid, owner.uid[1], owner.gid[1], {owner.groups.begin(), owner.groups.end()}};
    }
  }
  return {};
}

}  // namespace ckpt::capture
