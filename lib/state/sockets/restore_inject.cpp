// Packets with a foreign source address, sent to an address of this machine: they go through the loopback interface,
// where the kernel does not ask whether the source could come from there.
#include <netinet/in.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <ctime>

#include "lib/base/unique_fd.h"
#include "lib/state/sockets/restore_inet.h"
#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using proc::address_of;
using proc::name_of;
using proc::plain_name;

namespace {

constexpr size_t kMaxPacket = 65535;
constexpr uint8_t kHops = 255;  ///< those that have come through a router are not believed by all (IP_MINTTL)

int family_of(const SocketName& name) { return address_of<sockaddr>(name).sa_family; }

void add_words(uint64_t& sum, ByteSpan bytes) {
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint64_t high = static_cast<uint8_t>(bytes[i]), low = i + 1 < bytes.size() ? static_cast<uint8_t>(bytes[i + 1]) : 0;
    sum += high << 8 | low;
  }
}

uint16_t folded(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

template <class T>
ByteSpan raw_of(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

/// The checksum of UDP and TCP covers the addresses, too.
uint16_t checksum(const SocketName& from, const SocketName& to, int protocol, ByteSpan payload) {
  uint64_t sum = static_cast<uint64_t>(protocol) + payload.size();
  for (const SocketName* name : {&from, &to}) {
    if (family_of(*name) == AF_INET)
      add_words(sum, raw_of(address_of<sockaddr_in>(*name).sin_addr));
    else
      add_words(sum, raw_of(address_of<sockaddr_in6>(*name).sin6_addr));
  }
  add_words(sum, payload);
  return folded(sum);
}

/// Header and addresses of a packet without its payload, of `size` bytes.
std::vector<std::byte> packet_head(const SocketName& from, const SocketName& to, int protocol, size_t size) {
  const bool four = family_of(to) == AF_INET;
  std::vector<std::byte> packet(four ? sizeof(iphdr) : sizeof(ip6_hdr));
  if (four) {
    iphdr head{};
    head.version = 4, head.ihl = 5, head.ttl = kHops, head.protocol = static_cast<uint8_t>(protocol);
    head.tot_len = htons(static_cast<uint16_t>(sizeof head + size));
    head.saddr = address_of<sockaddr_in>(from).sin_addr.s_addr;
    head.daddr = address_of<sockaddr_in>(to).sin_addr.s_addr;
    std::memcpy(packet.data(), &head, sizeof head);
  } else {
    ip6_hdr head{};
    head.ip6_flow = htonl(6u << 28), head.ip6_plen = htons(static_cast<uint16_t>(size));
    head.ip6_nxt = static_cast<uint8_t>(protocol), head.ip6_hlim = kHops;
    head.ip6_src = address_of<sockaddr_in6>(from).sin6_addr, head.ip6_dst = address_of<sockaddr_in6>(to).sin6_addr;
    std::memcpy(packet.data(), &head, sizeof head);
  }
  return packet;
}

Result<void> send_packet(const SocketName& from, const SocketName& to, int protocol, ByteSpan payload) {
  const bool four = family_of(to) == AF_INET;
  std::vector<std::byte> packet = packet_head(from, to, protocol, payload.size());  // of IPv4 the kernel completes it
  packet.insert(packet.end(), payload.begin(), payload.end());
  CKPT_TRY_ASSIGN(UniqueFd raw, open_socket(four ? AF_INET : AF_INET6, SOCK_RAW, IPPROTO_RAW));
  int size = 1 << 20;
  (void)::setsockopt(raw.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  SocketName target = to;  // with a port the call for IPv6 fails
  std::memset(target.data() + offsetof(sockaddr_in, sin_port), 0, 2);
  ssize_t sent = ::sendto(raw.get(), packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(target.data()),
                          static_cast<socklen_t>(target.size()));
  if (sent < 0) return sys_error(name_text(to), "cannot send a packet to this machine");
  return {};
}

/// Where to send what came for `message.to`: a group or an address that is gone is replaced by the loopback address.
SocketName destination(const store::Socket& socket, const store::SocketMessage& message, const SocketName& from) {
  SocketName to = plain_name(message.to.empty() ? socket.name : message.to);
  if (family_of(to) == family_of(from) && proc::has_address(to) && proc::is_local_address(to)) return to;
  uint16_t port = family_of(socket.name) == AF_INET ? address_of<sockaddr_in>(socket.name).sin_port
                                                    : address_of<sockaddr_in6>(socket.name).sin6_port;
  sockaddr_in four{};
  four.sin_family = AF_INET, four.sin_port = port, four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6, six.sin6_port = port, six.sin6_addr = in6addr_loopback;
  return family_of(from) == AF_INET ? name_of(four) : name_of(six);
}

/// The loopback interface hands on at once, but by a softirq that may run elsewhere.
template <class HasArrived>
bool wait_until(HasArrived has_arrived) {
  for (int i = 0; i < 100; ++i) {
    if (has_arrived()) return true;
    timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
  return false;
}

bool shares_port(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &value, &size) == 0 && value != 0;
}

}  // namespace

Result<bool> inject_datagram(int fd, const store::Socket& socket, const store::SocketMessage& message, ByteSpan bytes) {
  SocketName from = plain_name(message.from);
  const size_t heads = sizeof(udphdr) + (family_of(from) == AF_INET ? sizeof(iphdr) : sizeof(ip6_hdr));
  if (from.size() < sizeof(sockaddr_in) || bytes.size() > kMaxPacket - heads) return false;
  SocketName to = destination(socket, message, from);
  // Sockets that share the port (SO_REUSEPORT) are told apart by whom they are connected to.
  bool shared = shares_port(fd);
  if (shared && ::connect(fd, reinterpret_cast<const sockaddr*>(message.from.data()),
                          static_cast<socklen_t>(message.from.size())) != 0)
    return false;
  std::vector<std::byte> payload(sizeof(udphdr) + bytes.size());
  udphdr head{};
  head.source = port_of(from), head.dest = port_of(to), head.len = htons(static_cast<uint16_t>(payload.size()));
  std::memcpy(payload.data(), &head, sizeof head);
  std::memcpy(payload.data() + sizeof head, bytes.data(), bytes.size());
  uint16_t sum = checksum(from, to, IPPROTO_UDP, payload);
  head.check = htons(sum == 0 ? 0xffff : sum);
  std::memcpy(payload.data(), &head, sizeof head);
  uint32_t before = receive_memory(fd);
  bool arrived = send_packet(from, to, IPPROTO_UDP, payload) &&
                 wait_until([&] { return receive_memory(fd) != before; });
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  if (shared && ::connect(fd, &none, sizeof none) != 0)
    return sys_error(subject_of(socket), "cannot be parted from the sender of a datagram");
  return arrived;
}

/// What nobody has received is sent back from the peer's machine, to tell that it has no such port.
Result<bool> inject_refusal(int fd, const store::Socket& socket) {
  const SocketName own = plain_name(socket.name), peer = plain_name(socket.peer_name);
  if (family_of(own) != family_of(peer)) return false;
  const bool four = family_of(own) == AF_INET;
  icmphdr head{};
  static_assert(sizeof head == sizeof(icmp6_hdr));
  head.type = four ? uint8_t{ICMP_DEST_UNREACH} : uint8_t{ICMP6_DST_UNREACH};
  head.code = four ? uint8_t{ICMP_PORT_UNREACH} : uint8_t{ICMP6_DST_UNREACH_NOPORT};
  udphdr datagram{};
  datagram.source = port_of(own), datagram.dest = port_of(peer), datagram.len = htons(sizeof datagram);
  std::vector<std::byte> payload(sizeof head);
  const std::vector<std::byte> sent = packet_head(own, peer, socket.protocol, sizeof datagram);
  payload.insert(payload.end(), sent.begin(), sent.end());
  const ByteSpan rest = raw_of(datagram);
  payload.insert(payload.end(), rest.begin(), rest.end());
  std::memcpy(payload.data(), &head, sizeof head);
  uint64_t sum = 0;
  add_words(sum, payload);
  head.checksum = htons(four ? folded(sum) : checksum(peer, own, IPPROTO_ICMPV6, payload));
  std::memcpy(payload.data(), &head, sizeof head);
  pollfd errors{fd, 0, 0};
  return send_packet(peer, own, four ? int{IPPROTO_ICMP} : int{IPPROTO_ICMPV6}, payload) &&
         wait_until([&] { return ::poll(&errors, 1, 0) == 1 && (errors.revents & POLLERR) != 0; });
}

Result<void> inject_segment(const SocketName& local, const SocketName& remote, const Segment& segment) {
  SocketName from = plain_name(remote), to = plain_name(local);
  tcphdr head{};
  head.source = port_of(from), head.dest = port_of(to);
  head.seq = htonl(segment.sequence), head.ack_seq = htonl(segment.acknowledgement);
  head.doff = sizeof head / 4, head.ack = 1, head.fin = segment.fin, head.rst = segment.reset;
  head.window = htons(0xffff);
  head.check = htons(checksum(from, to, IPPROTO_TCP, raw_of(head)));
  return send_packet(from, to, IPPROTO_TCP, raw_of(head));
}

}  // namespace ckpt::restore
