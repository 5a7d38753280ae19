// What the kernel says of sockets through NETLINK_SOCK_DIAG: things that no call on the socket itself tells.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/socket_name.h"

namespace ckpt::proc {

struct UnixSocketInfo {
  uint64_t inode = 0;
  int type = 0;
  int state = 0;  ///< TCP_ESTABLISHED 1, TCP_CLOSE 7, TCP_LISTEN 10
  bool has_peer = false;
  uint64_t peer = 0;  ///< its inode; 0: closed, or not accepted yet
  std::vector<uint64_t>
      pending;              ///< listening: inodes of the clients that wait to be accepted, in order; 0: closed again
  uint32_t backlog = 0;     ///< listening: the bound given to listen()
  uint32_t send_queue = 0;  ///< otherwise: bytes of memory that what it sent takes, unread by the receiver
  int shutdown = 0;         ///< 1: receiving has ended, 2: sending
  uint64_t file_device = 0, file_inode = 0;  ///< what it is bound to; 0, 0: no file
};

/// Every unix socket of this network namespace by inode. Sockets without an inode (not accepted yet) are not listed.
/// kUnsupported: the kernel has no unix_diag.
Result<std::map<uint64_t, UnixSocketInfo>> read_unix_sockets();

/// One of them, by its inode: a list lacks what the kernel has passed over because others came and went meanwhile.
/// An error: there is none, or no unix_diag.
Result<UnixSocketInfo> read_unix_socket(uint64_t inode);

/// Of the UDP sockets of this network namespace, by inode: 1: receiving has ended, 2: sending. kUnsupported: no
/// udp_diag.
Result<std::map<uint64_t, int>> read_inet_shutdowns(int family, int protocol);

/// Whether a TCP socket of this network namespace signs its segments (TCP_MD5SIG). It has to listen or to be connected:
/// the kernel finds no other by its names. Without CAP_NET_ADMIN the kernel does not say: false. An error: it cannot be
/// asked here.
Result<bool> has_tcp_signatures(int fd, const SocketName& name, const SocketName& peer);

/// Whether a TCP socket has keys of TCP-AO (RFC 5925, Linux 6.7).
bool has_tcp_authentication(int fd);

struct PacketSocketInfo {
  uint32_t copy_threshold = 0;
  bool has_ring = false, has_fanout = false;
  std::vector<std::vector<uint8_t>> memberships;  ///< struct packet_mreq with a long address each
};

/// Every packet socket of this network namespace by inode. kUnsupported: no packet_diag.
Result<std::map<uint64_t, PacketSocketInfo>> read_packet_sockets();

}  // namespace ckpt::proc
