// What an image says of the sockets of a process tree: `capture` fills it from duplicates of the live sockets,
// `rebuild` makes sockets from it. Addresses are kept as the kernel gives them (struct sockaddr_un, _in, _in6, _nl,
// _ll), because an abstract name holds any byte and the length of a name counts.
#pragma once

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
  kClosed,     ///< TCP: the connection has ended, or --tcp-close ends it
};

struct Socket {
  int descriptor = -1;                     ///< index of its open file description
  uint64_t inode = 0;                      ///< "socket:[inode]" at capture
  int family = 0, type = 0, protocol = 0;  ///< AF_*, SOCK_*, IPPROTO_*
  SocketState state = SocketState::kUnconnected;
  std::vector<uint8_t> name;       ///< sockaddr of getsockname, empty: not bound
  std::vector<uint8_t> peer_name;  ///< sockaddr of getpeername, of kClosed of SO_PEERNAME; empty: none
  bool foreign_address = false;    ///< inet: `name` was no address of the machine
  int peer = -1;                   ///< kConnected of unix: index into sockets
  bool reset = false;              ///< the next call fails with ECONNRESET
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

}  // namespace ckpt::store
