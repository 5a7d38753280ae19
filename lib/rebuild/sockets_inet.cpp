#include "lib/rebuild/sockets_inet.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lib/rebuild/sockets_internal.h"

namespace ckpt::rebuild {

using store::Socket;
using store::SocketState;

namespace {

const sockaddr* address(const SocketName& name) { return reinterpret_cast<const sockaddr*>(name.data()); }

Result<void> connect_to_peer(int fd, const Socket& socket) {
  if (socket.peer_name.empty()) return {};
  if (::connect(fd, address(socket.peer_name), static_cast<socklen_t>(socket.peer_name.size())) != 0)
    return sys_error(subject_of(socket), "cannot be connected again to " + name_text(socket.peer_name));
  return {};
}

Result<void> join_groups(int fd, const Socket& socket) {
  for (const auto& membership : socket.memberships) {
    group_req request{};
    request.gr_interface = membership.interface;
    if (membership.group.size() > sizeof request.gr_group)
      return Error(Code::kAnswerNo, subject_of(socket), "joined a group whose address is too long");
    std::memcpy(&request.gr_group, membership.group.data(), membership.group.size());
    int level = socket.family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
    if (::setsockopt(fd, level, MCAST_JOIN_GROUP, &request, sizeof request) != 0)
      return sys_error(subject_of(socket), "cannot join the multicast group " + name_text(membership.group));
  }
  return {};
}

}  // namespace

Result<void> bind_inet(int fd, const Socket& socket) {
  // A socket that was never bound has a name, too: all zero.
  size_t port = offsetof(sockaddr_in, sin_port);
  bool named = false;
  for (size_t i = port; i < socket.name.size(); ++i) named |= socket.name[i] != 0;
  if (!named) return {};
  if (::bind(fd, address(socket.name), static_cast<socklen_t>(socket.name.size())) == 0) return {};
  Error error = sys_error(subject_of(socket), "cannot be bound to its address");
  if (error.sys_errno == EADDRINUSE) error.code = Code::kBusy;
  if (error.sys_errno == EADDRNOTAVAIL) error.hint = "this machine does not have the address";
  return error;
}

void InetMaker::run() {
  auto each = [&](auto wanted, Result<void> (InetMaker::*make)(size_t)) {
    for (size_t i = 0; i < work_.records.size(); ++i) {
      const Socket& s = work_.records[i];
      bool is_inet = s.family == AF_INET || s.family == AF_INET6;
      if (is_inet && wanted(s)) work_.check(i, (this->*make)(i));
    }
  };
  auto tcp_in = [](SocketState state) {
    return [state](const Socket& s) { return s.type == SOCK_STREAM && s.state == state; };
  };
  each([](const Socket& s) { return s.type != SOCK_STREAM; }, &InetMaker::make_plain);
  // Connections share the port of the socket that accepted them, and come after it.
  each(tcp_in(SocketState::kListening), &InetMaker::make_listening);
  each(tcp_in(SocketState::kUnconnected), &InetMaker::make_bound);
  each(tcp_in(SocketState::kClosed), &InetMaker::make_closed);
  each(tcp_in(SocketState::kConnected), &InetMaker::make_established);
}

Result<void> InetMaker::make_plain(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  CKPT_TRY(bind_inet(fd, socket));
  CKPT_TRY(join_groups(fd, socket));
  if (!socket.messages.empty()) CKPT_TRY(fill(index));
  CKPT_TRY(connect_to_peer(fd, socket));
  CKPT_TRY(shut_down(fd, socket));
  return set_options(fd, socket, true, work_.notes);
}

Result<void> InetMaker::fill(size_t index) {
  const Socket& socket = work_.records[index];
  int fd = work_.fds[index].get();
  std::vector<std::byte> content;
  if (socket.content_size != 0) {
    CKPT_TRY_ASSIGN(content, work_.sources.read_content(socket));
  }
  if (content.size() != socket.content_size)
    return Error(Code::kAnswerNo, subject_of(socket), "its content is not in the image");
  widen_buffers(fd, content.size() + socket.messages.size() * 2048);
  size_t at = 0;
  for (const auto& message : socket.messages) {
    ByteSpan bytes = ByteSpan(content).subspan(at, message.size);
    at += message.size;
    CKPT_TRY_ASSIGN(bool arrived, inject_datagram(fd, socket, message, bytes));
    if (!arrived)
      work_.note(socket, "a datagram that it had not read yet is lost: a packet filter of this machine dropped it");
  }
  return {};
}

/// SO_REUSEADDR for the time of bind and listen, which both look at the port: connections that have just ended may still
/// hold it.
class ReusedAddress {
 public:
  explicit ReusedAddress(int fd) : fd_(fd) {
    socklen_t size = sizeof before_;
    const int on = 1;
    ok_ = ::getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &before_, &size) == 0 &&
          ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
  }
  Result<void> end(const Socket& socket) {
    ok_ = ok_ && ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &before_, sizeof before_) == 0;
    return ok_ ? Result<void>() : sys_error(subject_of(socket), "cannot set SO_REUSEADDR");
  }

 private:
  int fd_, before_ = 0;
  bool ok_ = false;
};

Result<void> InetMaker::make_bound(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  ReusedAddress reused(fd);
  CKPT_TRY(bind_inet(fd, socket));
  if (socket.state == SocketState::kListening && ::listen(fd, socket.backlog) != 0) {
    Error error = sys_error(subject_of(socket), "cannot listen");
    if (error.sys_errno == EADDRINUSE) error.code = Code::kBusy;
    return error;
  }
  CKPT_TRY(reused.end(socket));
  if (socket.state == SocketState::kUnconnected) return set_options(fd, socket, true, work_.notes);
  return {};
}

Result<void> InetMaker::make_listening(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY(make_bound(index));
  int fd = work_.fds[index].get();
  CKPT_TRY(shut_down(fd, socket));
  return set_options(fd, socket, true, work_.notes);
}

/// Reads as ended, and takes nothing: shutdown marks it although it answers that there is no connection.
Result<void> InetMaker::make_closed(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  if (::shutdown(fd, SHUT_RDWR) != 0 && errno != ENOTCONN) return sys_error(subject_of(socket), "cannot be shut down");
  return set_options(fd, socket, true, work_.notes);
}

}  // namespace ckpt::rebuild
