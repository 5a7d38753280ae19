// Sockets: what the manifest says of them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

/// An option that getsockopt can read and setsockopt can write, by its name in the C headers.
struct SocketOption {
  std::string name;            ///< "SO_RCVBUF", "TCP_NODELAY"
  std::vector<uint8_t> value;  ///< as getsockopt gives it
  bool operator==(const SocketOption&) const = default;
};

/// SO_PEERCRED and SO_PEERGROUPS. pid 0: the socket has none.
struct SocketCredentials {
  int pid = 0;
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;
  bool operator==(const SocketCredentials&) const = default;
};

/// One datagram or record; of a unix stream a run of bytes that came from one sender with one set of descriptors. Its
/// bytes follow those of the message before it in the socket's content.
struct SocketMessage {
  uint64_t size = 0;
  std::vector<uint8_t> from;     ///< address of the sender, empty: it had none
  std::vector<uint8_t> to;       ///< UDP: the address that it was sent to
  bool has_credentials = false;  ///< SCM_CREDENTIALS came with it
  int sender_pid = 0;
  uint32_t sender_uid = 0, sender_gid = 0;
  std::vector<int> rights;   ///< SCM_RIGHTS: indices of open file descriptions
  bool out_of_band = false;  ///< the one byte of MSG_OOB of a unix stream
  bool operator==(const SocketMessage&) const = default;
};

/// The file that a unix socket is bound to; `path` empty: none.
struct SocketFile {
  std::string path;      ///< absolute, where the file is now; the socket's `name` may be relative
  bool deleted = false;  ///< no longer reachable by any path
  uint32_t mode = 0, uid = 0, gid = 0;
  bool operator==(const SocketFile&) const = default;
};

/// A multicast group that the socket has joined, from all sources.
struct SocketMembership {
  uint32_t interface = 0;      ///< index
  std::vector<uint8_t> group;  ///< sockaddr
  bool operator==(const SocketMembership&) const = default;
};

/// A TCP connection as TCP_REPAIR tells it.
struct TcpConnection {
  int state = 0;  ///< TCP_ESTABLISHED 1, FIN_WAIT1 4, FIN_WAIT2 5, CLOSE_WAIT 8, LAST_ACK 9, CLOSING 11; 0: none
  uint32_t send_sequence = 0, receive_sequence = 0;  ///< of the byte after the last one of each queue, without FINs
  uint64_t receive_size = 0;                         ///< the socket's content is the receive queue, then the send queue
  uint64_t send_size = 0;
  uint64_t unsent_size = 0;  ///< the last part of the send queue, which never left
  uint32_t mss = 0;
  bool has_window_scale = false, sack = false, timestamps = false;
  int send_scale = 0, receive_scale = 0;
  uint32_t timestamp = 0;
  bool has_window = false;  ///< struct tcp_repair_window
  uint32_t window_sequence = 0, send_window = 0, max_window = 0, receive_window = 0, receive_window_update = 0;
  uint64_t receive_memory = 0;  ///< what counted against SO_RCVBUF; 0: not known
  bool operator==(const TcpConnection&) const = default;
};

enum class SocketState {
  kUnconnected,  ///< bound or not
  kListening,
  kConnected,  ///< unix: to `peer`; inet: to the address `peer_name`
  kPending,    ///< unix: connected to a listening socket that has not accepted it yet and names it in `pending`
  kPeerGone,   ///< unix: was connected, the other end has been closed
  kExternal,   ///< unix: connected to a socket outside the tree, by the name `peer_name`
  kClosed,     ///< TCP: the connection has ended, or --tcp-close ends it; what it has not read is in the content
  kConnecting,  ///< TCP: to `peer_name`, which has not answered yet
};

struct Socket {
  int descriptor = -1;                     ///< index of its open file description
  uint64_t inode = 0;                      ///< "socket:[inode]" at capture
  int family = 0, type = 0, protocol = 0;  ///< AF_*, SOCK_*, IPPROTO_*
  SocketState state = SocketState::kUnconnected;
  std::vector<uint8_t> name;       ///< sockaddr of getsockname, empty: not bound
  std::vector<uint8_t> peer_name;  ///< sockaddr of getpeername, of kClosed and kConnecting of SO_PEERNAME; empty: none
  bool foreign_address = false;    ///< inet: `name` was no address of the machine
  int peer = -1;                   ///< kConnected of unix: index into sockets
  bool reset = false;              ///< unix: the next call fails with ECONNRESET
  int error = 0;                   ///< inet: the next call fails with this errno; 0: it does not
  int shutdown = 0;                ///< 1: receiving has ended, 2: sending
  int backlog = 0;                 ///< kListening
  std::vector<int> pending;        ///< kListening of unix: indices of the sockets that wait to be accepted, in order
  uint32_t mode = 0, uid = 0, gid = 0;  ///< fstat of the socket itself
  SocketFile file;
  SocketCredentials peer_credentials;
  SocketCredentials connector;  ///< kPending: what its other end will see as peer credentials
  std::vector<SocketOption> options;
  std::vector<uint8_t> filter;                ///< SO_ATTACH_FILTER: struct sock_filter each
  std::vector<uint32_t> groups;               ///< netlink: multicast groups
  std::vector<SocketMembership> memberships;  ///< IP multicast
  std::vector<SocketMessage> messages;        ///< received, not read yet
  TcpConnection tcp;
  uint64_t content_offset = 0, content_size = 0;
  bool operator==(const Socket&) const = default;
};

/// Whether a restore can have the next call of such a socket fail with it again.
inline bool can_fail_again(const Socket& s, int error) {
  const bool inet = s.family == AF_INET || s.family == AF_INET6;
  const bool udp = s.type == SOCK_DGRAM && (s.protocol == IPPROTO_UDP || s.protocol == IPPROTO_UDPLITE);
  if (udp) return inet && s.state == SocketState::kConnected && error == ECONNREFUSED;
  return inet && s.type == SOCK_STREAM && s.state == SocketState::kClosed && !s.peer_name.empty() &&
         (error == ECONNRESET || error == EPIPE);
}

inline constexpr std::array<const char*, 8> kSocketStateNames = {"unconnected", "listening", "connected", "pending",
                                                                 "peer-gone",   "external",  "closed",    "connecting"};

/// sizeof(struct sockaddr_storage); sockaddr_un of a name in a folder of its own is the longest that occurs.
inline constexpr size_t kMaxSocketName = 128;

inline constexpr size_t kMaxSocketOption = 4096;

inline constexpr int kMaxErrno = 4095;

inline constexpr size_t kMaxSocketFilter = 8 * 4096;  ///< BPF_MAXINSNS instructions

template <class A>
void describe(A& a, typename A::template Of<SocketOption> o) {
  a.text("name", o.name);
  a.octets("value", o.value, 0, kMaxSocketOption);
}

template <class A>
void describe(A& a, typename A::template Of<SocketCredentials> c) {
  a.number("pid", c.pid, 0);
  a.number("uid", c.uid);
  a.number("gid", c.gid);
  a.numbers("groups", c.groups);
}

template <class A>
void describe(A& a, typename A::template Of<SocketMessage> m) {
  a.number("size", m.size);
  a.octets("from", m.from, 0, kMaxSocketName);
  a.octets("to", m.to, 0, kMaxSocketName);
  a.flag("has_credentials", m.has_credentials);
  a.number("sender_pid", m.sender_pid, 0);
  a.number("sender_uid", m.sender_uid);
  a.number("sender_gid", m.sender_gid);
  a.numbers("rights", m.rights);
  a.flag("out_of_band", m.out_of_band);
}

template <class A>
void describe(A& a, typename A::template Of<SocketFile> f) {
  a.text("path", f.path);
  a.flag("deleted", f.deleted);
  a.number("mode", f.mode);
  a.number("uid", f.uid);
  a.number("gid", f.gid);
}

template <class A>
void describe(A& a, typename A::template Of<SocketMembership> m) {
  a.number("interface", m.interface);
  a.octets("group", m.group, 0, kMaxSocketName);
}

template <class A>
void describe(A& a, typename A::template Of<TcpConnection> t) {
  a.number("state", t.state, 0, 12);
  a.number("send_sequence", t.send_sequence);
  a.number("receive_sequence", t.receive_sequence);
  a.number("receive_size", t.receive_size);
  a.number("send_size", t.send_size);
  a.number("unsent_size", t.unsent_size);
  a.number("mss", t.mss);
  a.flag("has_window_scale", t.has_window_scale);
  a.flag("sack", t.sack);
  a.flag("timestamps", t.timestamps);
  a.number("send_scale", t.send_scale, 0, 14);
  a.number("receive_scale", t.receive_scale, 0, 14);
  a.number("timestamp", t.timestamp);
  a.flag("has_window", t.has_window);
  a.number("window_sequence", t.window_sequence);
  a.number("send_window", t.send_window);
  a.number("max_window", t.max_window);
  a.number("receive_window", t.receive_window);
  a.number("receive_window_update", t.receive_window_update);
  a.optional().number("receive_memory", t.receive_memory);
}

template <class A>
void describe(A& a, typename A::template Of<Socket> s) {
  a.number("descriptor", s.descriptor, -1);
  a.number("inode", s.inode);
  a.number("family", s.family, 0);
  a.number("type", s.type, 0);
  a.number("protocol", s.protocol, 0);
  a.choice("state", s.state, kSocketStateNames);
  a.octets("name", s.name, 0, kMaxSocketName);
  a.octets("peer_name", s.peer_name, 0, kMaxSocketName);
  a.optional().flag("foreign_address", s.foreign_address);
  a.number("peer", s.peer, -1);
  a.flag("reset", s.reset);
  a.optional().number("error", s.error, 0, kMaxErrno);
  a.number("shutdown", s.shutdown, 0, 3);
  a.number("backlog", s.backlog);
  a.numbers("pending", s.pending);
  a.number("mode", s.mode);
  a.number("uid", s.uid);
  a.number("gid", s.gid);
  a.object("file", s.file);
  a.object("peer_credentials", s.peer_credentials);
  a.object("connector", s.connector);
  a.list("options", s.options);
  a.octets("filter", s.filter, 0, kMaxSocketFilter);
  a.numbers("groups", s.groups);
  a.list("memberships", s.memberships);
  a.list("messages", s.messages);
  a.object("tcp", s.tcp);
  a.number("content_offset", s.content_offset);
  a.number("content_size", s.content_size);
}

}  // namespace ckpt::store
