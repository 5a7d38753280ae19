// The parts of SocketCapture, a file each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/proc/socket_name.h"
#include "lib/state/sockets/capture.h"
#include "lib/state/sockets/peek.h"

namespace ckpt::capture {

/// Bytes of a file in /proc/net.
inline constexpr uint64_t kMaxList = uint64_t{16} << 20;

using proc::name_text;

/// What was peeked out of one queue.
struct SocketQueue {
  std::vector<store::SocketMessage> messages;
  std::vector<std::byte> bytes;
  std::vector<std::vector<UniqueFd>> rights;  ///< parallel to messages
  std::string obstacle;                       ///< why it cannot be copied completely; empty: it has been
};

/// A unix stream: runs of bytes, split where the sender or the descriptors change.
Result<SocketQueue> peek_stream(OptionGuard& guard, int fd);
/// Datagrams and records, unix or UDP. `pending_error`: poll reports one; a receive call would take it away.
Result<SocketQueue> peek_datagrams(OptionGuard& guard, int fd, int family, int type, bool pending_error);

/// getsockopt of an int; nothing where the socket has no such option.
std::optional<int> int_option(int fd, int level, int option);
std::vector<uint8_t> socket_name(int fd);
std::vector<uint8_t> socket_peer_name(int fd);
/// Of a connection that has ended: empty where it never was one.
std::vector<uint8_t> socket_former_peer(int fd, int family);
/// The peer of a connected socket of raw IP or ICMP, which has no port: in the text of /proc/net/raw, raw6, icmp or
/// icmp6. Empty: it is not connected, or not there.
std::vector<uint8_t> portless_peer(const std::string& list, int family, uint64_t inode);
/// Of a UDP socket: MSG_MORE or UDP_CORK holds back what it was given.
bool has_unfinished_datagram(int fd, int family);
/// SO_MEMINFO: bytes of memory that count against SO_RCVBUF and against SO_SNDBUF.
struct SocketMemory {
  uint32_t received = 0, to_send = 0;
};
SocketMemory socket_memory(int fd);
/// poll's revents, nothing waited for.
int poll_socket(int fd);

/// Filters, and with `values` options, of which there are some fifty. A line for each that cannot be carried over.
Result<std::vector<std::string>> take_socket_options(int fd, bool values, store::Socket& socket);

struct PendingError {
  std::string obstacle;  ///< what cannot be carried over, and ends when the process is told
  std::string note;      ///< what is lost, or told otherwise
};
/// Of an internet, packet or netlink socket whose state, name and peer are known: `error`, where a restore can make it
/// again, or one like it.
PendingError take_pending_error(int fd, store::Socket& socket);

/// Of a TCP connection: it has not asked yet for the request that made it (TCP_SAVED_SYN). To be told takes it away.
bool has_saved_request(int fd);

/// The groups that the machine has joined, of /proc/net/igmp and /proc/net/igmp6.
std::vector<store::SocketMembership> parse_igmp(const std::string& text);
std::vector<store::SocketMembership> parse_igmp6(const std::string& text);
/// Those of them that the socket has joined. False: one of them with a choice of sources.
Result<bool> take_memberships(int fd, store::Socket& socket);

/// State, of a connection tcp.state, too. Returns how many connections a listening socket has that wait to be accepted.
Result<uint32_t> take_tcp_state(int fd, store::Socket& socket);
/// Of a connection that is being made: whether bytes went with its request (MSG_FASTOPEN), or wait to.
Result<bool> has_data_in_request(int fd);
/// The rest of a connection, and both its queues in `bytes`, receive queue first. It is in repair mode only meanwhile.
Result<void> take_tcp_queues(OptionGuard& guard, int fd, store::Socket& socket, std::vector<std::byte>& bytes);

}  // namespace ckpt::capture
