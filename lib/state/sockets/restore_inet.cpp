#include "lib/state/sockets/restore_inet.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using store::Socket;
using store::SocketState;

namespace {

/// A socket that was never bound has a name, too: all zero.
bool is_named(const Socket& socket) {
  bool named = false;
  for (size_t i = offsetof(sockaddr_in, sin_port); i < socket.name.size(); ++i) named |= socket.name[i] != 0;
  return named;
}

Result<void> connect_to_peer(int fd, const Socket& socket) {
  if (socket.peer_name.empty()) return {};
  if (::connect(fd, raw_address(socket.peer_name), static_cast<socklen_t>(socket.peer_name.size())) != 0)
    return sys_error(subject_of(socket), "cannot be connected again to " + name_text(socket.peer_name));
  return {};
}

Result<void> join_groups(int fd, const Socket& socket) {
  for (const auto& membership : socket.memberships) {
    group_req request{};
    request.gr_interface = membership.interface;
    if (membership.group.size() > sizeof request.gr_group)
      return Error(Code::kCorrupt, subject_of(socket), "joined a group whose address is too long");
    std::memcpy(&request.gr_group, membership.group.data(), membership.group.size());
    // A socket of IPv6 may have joined groups of IPv4, too.
    int level = request.gr_group.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
    if (::setsockopt(fd, level, MCAST_JOIN_GROUP, &request, sizeof request) != 0)
      return sys_error(subject_of(socket), "cannot join the multicast group " + name_text(membership.group));
  }
  return {};
}

}  // namespace

Result<void> bind_inet(int fd, const Socket& socket) {
  if (!is_named(socket)) return {};
  if (::bind(fd, raw_address(socket.name), static_cast<socklen_t>(socket.name.size())) == 0) return {};
  Error error = sys_error(subject_of(socket), "cannot be bound to its address");
  if (error.sys_errno == EADDRINUSE) error.code = Code::kBusy;
  if (error.sys_errno == EADDRNOTAVAIL) error.hint = "this machine does not have the address";
  return error;
}

void InetBuilder::run() {
  auto each = [&](auto wanted, Result<void> (InetBuilder::*make)(size_t)) {
    for (size_t i = 0; i < work_.records.size(); ++i) {
      const Socket& s = work_.records[i];
      bool is_inet = s.family == AF_INET || s.family == AF_INET6;
      if (is_inet && wanted(s)) work_.check(i, (this->*make)(i));
    }
  };
  auto tcp_in = [](SocketState state) {
    return [state](const Socket& s) { return s.type == SOCK_STREAM && s.state == state; };
  };
  each([](const Socket& s) { return s.type != SOCK_STREAM; }, &InetBuilder::make_plain);
  // Connections share the port of the socket that accepted them, and come after it.
  each(tcp_in(SocketState::kListening), &InetBuilder::make_listening);
  each(tcp_in(SocketState::kUnconnected), &InetBuilder::make_bound);
  each(tcp_in(SocketState::kClosed), &InetBuilder::make_closed);
  each(tcp_in(SocketState::kConnected), &InetBuilder::make_established);
  each(tcp_in(SocketState::kConnecting), &InetBuilder::make_connecting);
  put_back();
}

/// Another one of the tree has the same port. Connections do not count: they are made in repair mode, which shares any.
bool InetBuilder::shares_port(size_t index) const {
  const Socket& one = work_.records[index];
  auto named = [](const Socket& s) {
    const bool inet = s.family == AF_INET || s.family == AF_INET6;
    return inet && s.type != SOCK_RAW && port_of(s.name) != 0 && s.state != SocketState::kClosed &&
           (s.type != SOCK_STREAM || s.state != SocketState::kConnected);
  };
  for (size_t i = 0; i < work_.records.size() && named(one); ++i) {
    const Socket& other = work_.records[i];
    if (i != index && named(other) && other.type == one.type && other.protocol == one.protocol &&
        port_of(other.name) == port_of(one.name))
      return true;
  }
  return false;
}

Result<void> InetBuilder::turn_on(size_t index, int level, int option) {
  int fd = work_.fds[index].get(), before = 0;
  const int on = 1;
  socklen_t size = sizeof before;
  if (::getsockopt(fd, level, option, &before, &size) == 0 && before == on) return {};
  turned_on_.push_back({index, level, option, before});
  if (::setsockopt(fd, level, option, &on, sizeof on) != 0)
    return sys_error(subject_of(work_.records[index]), "cannot set an option for the time of its binding");
  return {};
}

/// Options that count where a name is given, and may have been cleared since. They stay on until the last socket has
/// its name: two that share a port both need them.
Result<void> InetBuilder::turn_on_for_name(size_t index) {
  const Socket& socket = work_.records[index];
  const bool six = socket.family == AF_INET6;
  if (socket.foreign_address)
    CKPT_TRY(turn_on(index, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_FREEBIND : IP_FREEBIND));
  const bool repaired = socket.state == SocketState::kConnected || socket.state == SocketState::kClosed;
  if (socket.type == SOCK_RAW || (socket.type == SOCK_STREAM && repaired) || !is_named(socket)) return {};
  // The port of connections that have just ended can be had only so.
  if (socket.type == SOCK_STREAM) CKPT_TRY(turn_on(index, SOL_SOCKET, SO_REUSEADDR));
  if (port_of(socket.name) == 0) CKPT_TRY(turn_on(index, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT));
  if (!shares_port(index)) return {};
  CKPT_TRY(turn_on(index, SOL_SOCKET, SO_REUSEADDR));
  return turn_on(index, SOL_SOCKET, SO_REUSEPORT);
}

Result<void> InetBuilder::bind_as_then(size_t index) {
  CKPT_TRY(turn_on_for_name(index));
  return bind_inet(work_.fds[index].get(), work_.records[index]);
}

void InetBuilder::put_back() {
  for (const TurnedOn& option : turned_on_) {
    const bool made = work_.is_usable(option.index);
    if (made && ::setsockopt(work_.fds[option.index].get(), option.level, option.option, &option.before,
                             sizeof option.before) != 0)
      work_.fail(option.index, sys_error("", "cannot put an option back as it was"));
  }
  turned_on_.clear();
}

Result<void> InetBuilder::make_plain(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  CKPT_TRY(bind_as_then(index));
  CKPT_TRY(join_groups(fd, socket));
  if (!socket.messages.empty()) CKPT_TRY(fill(index));
  CKPT_TRY(connect_to_peer(fd, socket));
  if (socket.error != 0) CKPT_TRY(refuse_again(index));
  CKPT_TRY(shut_down(fd, socket));
  return set_options(fd, socket, true, work_.notes);
}

Result<void> InetBuilder::refuse_again(size_t index) {
  CKPT_TRY_ASSIGN(const bool arrived, inject_refusal(work_.fds[index].get(), work_.records[index]));
  if (!arrived)
    work_.note(work_.records[index],
               "an error that it had not been told yet is lost: this machine does not deliver it (a packet filter)");
  return {};
}

Result<void> InetBuilder::fill(size_t index) {
  const Socket& socket = work_.records[index];
  int fd = work_.fds[index].get();
  std::vector<std::byte> content;
  if (socket.content_size != 0) {
    CKPT_TRY_ASSIGN(content, work_.sources.read_content(socket));
  }
  if (content.size() != socket.content_size)
    return Error(Code::kCorrupt, subject_of(socket), "its content is not in the image");
  widen_buffers(fd, content.size() + socket.messages.size() * 2048);
  size_t at = 0;
  for (const auto& message : socket.messages) {
    ByteSpan bytes = ByteSpan(content).subspan(at, message.size);
    at += message.size;
    CKPT_TRY_ASSIGN(bool arrived, inject_datagram(fd, socket, message, bytes));
    if (!arrived)
      work_.note(socket,
                 "a datagram that it had not read yet is lost: this machine does not deliver it (a packet filter, no "
                 "way to its sender)");
  }
  return {};
}

Result<void> InetBuilder::make_bound(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  CKPT_TRY(bind_as_then(index));
  if (socket.state == SocketState::kListening && ::listen(fd, socket.backlog) != 0) {
    Error error = sys_error(subject_of(socket), "cannot listen");
    if (error.sys_errno == EADDRINUSE) error.code = Code::kBusy;
    return error;
  }
  if (socket.state == SocketState::kUnconnected) return set_options(fd, socket, true, work_.notes);
  return {};
}

Result<void> InetBuilder::make_listening(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY(make_bound(index));
  int fd = work_.fds[index].get();
  CKPT_TRY(shut_down(fd, socket));
  return set_options(fd, socket, true, work_.notes);
}

/// Reads as ended, and takes nothing. The addresses of both ends stay with it (getsockname, SO_PEERNAME).
Result<void> InetBuilder::make_closed(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  CKPT_TRY(set_options(work_.fds[index].get(), socket, false, work_.notes));
  Result<void> ended =
      socket.peer_name.empty() ? Error(Code::kUnsupported, "", "its peer is not known") : end_connection(index);
  if (!ended) {
    if (socket.content_size != 0) return std::move(ended).error();  // what was not read would be lost
    if (!socket.peer_name.empty())
      work_.note(socket, std::string("the addresses of the connection that it had") +
                             (socket.error != 0 ? ", and an error of it that it had not been told yet," : "") +
                             " are lost: " + ended.error().text());
    CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
    int fd = work_.fds[index].get();
    CKPT_TRY(set_options(fd, socket, false, work_.notes));
    // Marks it although it answers that there is no connection.
    if (::shutdown(fd, SHUT_RDWR) != 0 && errno != ENOTCONN)
      return sys_error(subject_of(socket), "cannot be shut down");
  }
  return set_options(work_.fds[index].get(), socket, true, work_.notes);
}

/// The peer never knew of the one before: another port does as well, where that one is taken. What fails at once leaves
/// no error on the socket, which would look connected to a program that waits until it can write.
Result<void> InetBuilder::make_connecting(size_t index) {
  const Socket& socket = work_.records[index];
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  const int fd = work_.fds[index].get(), flags = ::fcntl(fd, F_GETFL);
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  if (auto bound = bind_as_then(index); !bound)
    work_.note(socket, "its connection, which is being made, has another port now: " + bound.error().text());
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return sys_error(subject_of(socket), "cannot set its flags");
  const int done = ::connect(fd, raw_address(socket.peer_name), static_cast<socklen_t>(socket.peer_name.size()));
  if (done != 0 && errno != EINPROGRESS)
    return sys_error(subject_of(socket), "cannot make its connection to " + name_text(socket.peer_name) + " again");
  if (::fcntl(fd, F_SETFL, flags) != 0) return sys_error(subject_of(socket), "cannot set its flags");
  return set_options(fd, socket, true, work_.notes);
}

}  // namespace ckpt::restore
