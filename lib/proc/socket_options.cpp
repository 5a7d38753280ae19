#include "lib/proc/socket_options.h"

#include <linux/if_packet.h>
#include <linux/in6.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>
#include <unordered_map>

#include "lib/proc/kernel_memory.h"

namespace ckpt::proc {

namespace {

// Newer than the headers of Debian 12.
constexpr int kRcvMark = 75, kPassPidfd = 76, kPassRights = 83, kRcvPriority = 82;
constexpr int kReserveMem = 73, kSoInq = 84;
constexpr int kIpLocalPortRange = 51;
// Kernel numbers that the C library does not name.
constexpr int kTimestampNew = 63, kTimestampNsNew = 64, kTimestampingNew = 65;
constexpr int kIpRecverr4884 = 26, kIp6Recverr4884 = 31, kIp6FlowinfoSend = 33, kIp6Hdrincl = 36;
constexpr int kTcpInq = 36, kTcpTxDelay = 37, kTcpRtoMax = 44, kTcpRtoMin = 45, kTcpDelackMax = 46;
constexpr int kIcmpLevel = 255, kIcmpFilter = 1;

#define CKPT_OPTION(level, option) \
  { #option, level, option, false }
#define CKPT_LATE(level, option) \
  { #option, level, option, true }

/// Buffers, credentials, the peek offset and the lock of the filter are `late`. SO_BUF_LOCK follows the sizes, which
/// set it.
constexpr std::array kSocket = {
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_DEBUG),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_REUSEADDR),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_REUSEPORT),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_BINDTODEVICE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_DONTROUTE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_BROADCAST),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_KEEPALIVE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_OOBINLINE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_NO_CHECK),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_MARK),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_PRIORITY),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_RXQ_OVFL),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_SELECT_ERR_QUEUE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_BUSY_POLL),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_PREFER_BUSY_POLL),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_BUSY_POLL_BUDGET),  // the kernel's memory alone tells it
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_WIFI_STATUS),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_NOFCS),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_MAX_PACING_RATE),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_ZEROCOPY),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_TXTIME),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_TXREHASH),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_TIMESTAMP),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_TIMESTAMPNS),
    SocketOptionKind CKPT_OPTION(SOL_SOCKET, SO_TIMESTAMPING),
    SocketOptionKind{"SO_TIMESTAMP_NEW", SOL_SOCKET, kTimestampNew, false},
    SocketOptionKind{"SO_TIMESTAMPNS_NEW", SOL_SOCKET, kTimestampNsNew, false},
    SocketOptionKind{"SO_TIMESTAMPING_NEW", SOL_SOCKET, kTimestampingNew, false},
    SocketOptionKind{"SO_RCVMARK", SOL_SOCKET, kRcvMark, false},
    SocketOptionKind{"SO_RCVPRIORITY", SOL_SOCKET, kRcvPriority, false},
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_SNDBUF),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_RCVBUF),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_BUF_LOCK),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_RCVLOWAT),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_RCVTIMEO),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_SNDTIMEO),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_LINGER),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_INCOMING_CPU),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_PEEK_OFF),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_PASSCRED),
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_PASSSEC),
    SocketOptionKind{"SO_PASSPIDFD", SOL_SOCKET, kPassPidfd, true},
    SocketOptionKind{"SO_PASSRIGHTS", SOL_SOCKET, kPassRights, true},
    SocketOptionKind{"SO_RESERVE_MEM", SOL_SOCKET, kReserveMem, true},
    SocketOptionKind{"SO_INQ", SOL_SOCKET, kSoInq, true},
    SocketOptionKind CKPT_LATE(SOL_SOCKET, SO_LOCK_FILTER),
};

constexpr std::array kIp = {
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_FREEBIND),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_TRANSPARENT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
    SocketOptionKind{"IP_LOCAL_PORT_RANGE", IPPROTO_IP, kIpLocalPortRange, false},
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_OPTIONS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_TOS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_TTL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MINTTL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MTU_DISCOVER),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVERR),
    SocketOptionKind{"IP_RECVERR_RFC4884", IPPROTO_IP, kIpRecverr4884, false},
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_PKTINFO),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVTTL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVTOS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RETOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVORIGDSTADDR),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_CHECKSUM),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_PASSSEC),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_UNICAST_IF),
};

/// Not of streams.
constexpr std::array kIpPackets = {
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_RECVFRAGSIZE),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MULTICAST_TTL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MULTICAST_LOOP),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MULTICAST_ALL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_MULTICAST_IF),
};

constexpr std::array kIp6 = {
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_V6ONLY),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_FREEBIND),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_TRANSPARENT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_UNICAST_IF),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVERR),
    SocketOptionKind{"IPV6_RECVERR_RFC4884", IPPROTO_IPV6, kIp6Recverr4884, false},
    SocketOptionKind{"IPV6_FLOWINFO", IPPROTO_IPV6, IPV6_FLOWINFO, false},
    SocketOptionKind{"IPV6_FLOWINFO_SEND", IPPROTO_IPV6, kIp6FlowinfoSend, false},
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_2292PKTINFO),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_2292HOPLIMIT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_2292RTHDR),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_2292HOPOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_2292DSTOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_HOPOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RTHDRDSTOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RTHDR),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_DSTOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_TCLASS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_DONTFRAG),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_ADDR_PREFERENCES),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MINHOPCOUNT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVHOPLIMIT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVRTHDR),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVHOPOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVDSTOPTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVPATHMTU),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVORIGDSTADDR),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_RECVFRAGSIZE),
};

constexpr std::array kIp6Packets = {
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MULTICAST_HOPS),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MULTICAST_LOOP),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MULTICAST_ALL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_MULTICAST_IF),
};

/// TCP_QUICKACK is left out: it reads as the present state of the connection. So does TCP_MAXSEG once there is one.
constexpr std::array kTcp = {
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_MAXSEG),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_NODELAY),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_KEEPIDLE),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_KEEPINTVL),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_KEEPCNT),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_SYNCNT),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_LINGER2),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_CONGESTION),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_SAVE_SYN),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE),
    SocketOptionKind{"TCP_INQ", IPPROTO_TCP, kTcpInq, false},
    SocketOptionKind{"TCP_TX_DELAY", IPPROTO_TCP, kTcpTxDelay, false},
    SocketOptionKind{"TCP_RTO_MAX_MS", IPPROTO_TCP, kTcpRtoMax, false},
    SocketOptionKind{"TCP_RTO_MIN_US", IPPROTO_TCP, kTcpRtoMin, false},
    SocketOptionKind{"TCP_DELACK_MAX_US", IPPROTO_TCP, kTcpDelackMax, false},
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_FASTOPEN),
    SocketOptionKind CKPT_OPTION(IPPROTO_TCP, TCP_FASTOPEN_KEY),
    SocketOptionKind CKPT_LATE(IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    SocketOptionKind CKPT_LATE(IPPROTO_TCP, TCP_FASTOPEN_CONNECT),
    SocketOptionKind CKPT_LATE(IPPROTO_TCP, TCP_WINDOW_CLAMP),
    SocketOptionKind CKPT_LATE(IPPROTO_TCP, TCP_CORK),
};

// <netinet/udp.h> of glibc has no names for these.
constexpr int kUdpNoCheck6Tx = 101, kUdpNoCheck6Rx = 102, kUdpSegment = 103, kUdpGro = 104;
constexpr std::array kUdp = {
    SocketOptionKind{"UDP_NO_CHECK6_TX", IPPROTO_UDP, kUdpNoCheck6Tx, false},
    SocketOptionKind{"UDP_NO_CHECK6_RX", IPPROTO_UDP, kUdpNoCheck6Rx, false},
    SocketOptionKind{"UDP_SEGMENT", IPPROTO_UDP, kUdpSegment, false},
    SocketOptionKind{"UDP_GRO", IPPROTO_UDP, kUdpGro, false},
    SocketOptionKind CKPT_LATE(IPPROTO_UDP, UDP_CORK),
};

constexpr int kUdplite = IPPROTO_UDPLITE, kSendCoverage = 10, kReceiveCoverage = 11;
constexpr std::array kUdpLite = {
    SocketOptionKind{"UDPLITE_SEND_CSCOV", kUdplite, kSendCoverage, false},
    SocketOptionKind{"UDPLITE_RECV_CSCOV", kUdplite, kReceiveCoverage, false},
};

constexpr std::array kRaw = {
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_HDRINCL),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_NODEFRAG),
    SocketOptionKind CKPT_OPTION(IPPROTO_IP, IP_ROUTER_ALERT),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_CHECKSUM),
    SocketOptionKind CKPT_OPTION(IPPROTO_IPV6, IPV6_ROUTER_ALERT_ISOLATE),
    SocketOptionKind{"IPV6_HDRINCL", IPPROTO_IPV6, kIp6Hdrincl, false},
    SocketOptionKind{"ICMP_FILTER", kIcmpLevel, kIcmpFilter, false},
    SocketOptionKind{"ICMPV6_FILTER", IPPROTO_ICMPV6, kIcmpFilter, false},
};

constexpr std::array kNetlink = {
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_PKTINFO),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_BROADCAST_ERROR),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_NO_ENOBUFS),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_LISTEN_ALL_NSID),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_CAP_ACK),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_EXT_ACK),
    SocketOptionKind CKPT_OPTION(SOL_NETLINK, NETLINK_GET_STRICT_CHK),
};

constexpr int kPacketIgnoreOutgoing = 23, kPacketHeaderSize = 24;
constexpr std::array kPacket = {
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_VERSION),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_AUXDATA),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_ORIGDEV),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_VNET_HDR),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_LOSS),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_TIMESTAMP),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_QDISC_BYPASS),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_RESERVE),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_TX_HAS_OFF),
    SocketOptionKind{"PACKET_IGNORE_OUTGOING", SOL_PACKET, kPacketIgnoreOutgoing, false},
    SocketOptionKind{"PACKET_VNET_HDR_SZ", SOL_PACKET, kPacketHeaderSize, false},
    // Not to be had from getsockopt, but from packet_diag.
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_COPY_THRESH),
    SocketOptionKind CKPT_OPTION(SOL_PACKET, PACKET_ADD_MEMBERSHIP),
};

#undef CKPT_OPTION
#undef CKPT_LATE

template <class Table>
void append(std::vector<SocketOptionKind>& out, const Table& table) {
  out.insert(out.end(), table.begin(), table.end());
}

}  // namespace

std::vector<SocketOptionKind> socket_options(int family, int type, int protocol) {
  std::vector<SocketOptionKind> out;
  append(out, kSocket);
  bool four = family == AF_INET || (family == AF_INET6 && type != SOCK_RAW), six = family == AF_INET6;
  if (six) append(out, kIp6);
  if (six && type != SOCK_STREAM) append(out, kIp6Packets);
  if (four) append(out, kIp);
  if (four && type != SOCK_STREAM) append(out, kIpPackets);
  if ((family == AF_INET || family == AF_INET6) && type == SOCK_RAW) append(out, kRaw);
  if (protocol == IPPROTO_TCP && type == SOCK_STREAM) append(out, kTcp);
  if ((protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE) && type == SOCK_DGRAM) append(out, kUdp);
  if (protocol == IPPROTO_UDPLITE && type == SOCK_DGRAM) append(out, kUdpLite);
  if (family == AF_NETLINK) append(out, kNetlink);
  if (family == AF_PACKET) append(out, kPacket);
  return out;
}

const SocketOptionKind* find_socket_option(std::string_view name) {
  static const std::unordered_map<std::string_view, const SocketOptionKind*> kinds = [] {
    std::unordered_map<std::string_view, const SocketOptionKind*> out;
    const auto add = [&](const auto& table) {
      for (const SocketOptionKind& kind : table) out.emplace(kind.name, &kind);  // the first of a name counts
    };
    add(kSocket), add(kIp), add(kIpPackets), add(kIp6), add(kIp6Packets), add(kTcp), add(kUdp), add(kUdpLite);
    add(kRaw), add(kNetlink), add(kPacket);
    return out;
  }();
  const auto found = kinds.find(name);
  return found != kinds.end() ? found->second : nullptr;
}

namespace {

/// The `struct sock` of a descriptor of ckpt's.
Result<uint64_t> sock_of(const KernelMemory& kernel, int fd) {
  CKPT_TRY_ASSIGN(const uint64_t file, kernel.file_of(fd));
  CKPT_TRY_ASSIGN(const auto socket, kernel.read<uint64_t>(file, "file", "private_data"));
  return kernel.read<uint64_t>(socket, "socket", "sk");
}

}  // namespace

Result<HiddenOptions> read_hidden_options(int fd) {
  HiddenOptions out;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t inner, sock_of(*kernel, fd));
  CKPT_TRY_ASSIGN(const auto sends, kernel->read<uint32_t>(inner, "sock", "sk_zckey"));
  out.zero_copied = sends != 0;
  CKPT_TRY_ASSIGN(out.stamp_key, kernel->read<uint32_t>(inner, "sock", "sk_tskey"));
  CKPT_TRY_ASSIGN(const auto group, kernel->read<uint64_t>(inner, "sock", "sk_reuseport_cb"));
  if (group == 0) return out;
  CKPT_TRY_ASSIGN(const auto program, kernel->read<uint64_t>(group, "sock_reuseport", "prog"));
  out.shared_out = program != 0;
  return out;
}

Result<uint16_t> read_busy_poll_budget(int fd) {
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t inner, sock_of(*kernel, fd));
  return kernel->read<uint16_t>(inner, "sock", "sk_busy_poll_budget");
}

Result<PendingErrors> read_pending_errors(int fd) {
  PendingErrors out;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t inner, sock_of(*kernel, fd));
  CKPT_TRY_ASSIGN(out.error, kernel->read<int>(inner, "sock", "sk_err"));
  CKPT_TRY_ASSIGN(const uint64_t queue, kernel->offset_of("sock", "sk_error_queue"));
  CKPT_TRY_ASSIGN(out.messages, kernel->read<uint32_t>(inner + queue, "sk_buff_head", "qlen"));
  return out;
}

}  // namespace ckpt::proc
