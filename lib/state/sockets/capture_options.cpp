#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "lib/proc/socket_options.h"
#include "lib/state/sockets/capture_internal.h"

namespace ckpt::capture {

namespace {

constexpr int kTcpUlp = 31, kUdpEncap = 100;

std::vector<uint8_t> address_by(int fd, int (*call)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (call(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return {};
  auto* raw = reinterpret_cast<const uint8_t*>(&name);
  return {raw, raw + std::min<size_t>(size, sizeof name)};
}

/// The classic filter of the socket. False: an eBPF program, which cannot be read.
Result<bool> take_filter(int fd, std::vector<uint8_t>& out) {
  socklen_t count = 0;  // in instructions, not bytes
  if (::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, nullptr, &count) != 0) {
    if (errno == EACCES) return false;
    if (errno == ENOPROTOOPT || errno == EOPNOTSUPP) return true;
    return sys_error("socket", "cannot read its filter");
  }
  if (count == 0) return true;
  out.resize(count * sizeof(sock_filter));
  if (::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, out.data(), &count) != 0)
    return sys_error("socket", "cannot read its filter");
  return true;
}

void find_unsupported(int fd, const store::Socket& socket, std::vector<std::string>& out) {
  if (socket.protocol == IPPROTO_TCP && socket.type == SOCK_STREAM) {
    std::array<char, 32> ulp{};
    socklen_t size = sizeof ulp;
    if (::getsockopt(fd, IPPROTO_TCP, kTcpUlp, ulp.data(), &size) == 0 && size > 0 && ulp[0] != 0)
      out.push_back(fmt::format("a TCP connection with the upper layer protocol {} (TCP_ULP), which is not supported",
                                ulp.data()));
  }
  if (socket.type == SOCK_RAW && int_option(fd, IPPROTO_IPV6, IPV6_ROUTER_ALERT).value_or(0) > 0)
    out.push_back("a raw socket that is given packets with a router alert (IPV6_ROUTER_ALERT), which is not supported");
  if (socket.protocol == IPPROTO_UDP && int_option(fd, IPPROTO_UDP, kUdpEncap).value_or(0) != 0)
    out.push_back("a UDP socket that unpacks a tunnel (UDP_ENCAP), which is not supported");
}

/// Where the kernel's memory cannot be read these are lost.
void find_hidden(int fd, const store::Socket& socket, std::vector<std::string>& out) {
  const bool is_inet = socket.family == AF_INET || socket.family == AF_INET6;
  const bool numbered = (int_option(fd, SOL_SOCKET, SO_TIMESTAMPING).value_or(0) & SOF_TIMESTAMPING_OPT_ID) != 0;
  if (!numbered && (!is_inet || (int_option(fd, SOL_SOCKET, SO_REUSEPORT).value_or(0) == 0 &&
                                 int_option(fd, SOL_SOCKET, SO_ZEROCOPY).value_or(0) == 0)))
    return;
  const auto found = proc::read_hidden_options(fd);
  if (!found) return;
  if (found->shared_out)
    out.push_back(
        "a socket of a SO_REUSEPORT group with a BPF program (SO_ATTACH_REUSEPORT_CBPF, _EBPF), which is not "
        "supported");
  if (found->zero_copied)
    out.push_back("a socket that has sent with MSG_ZEROCOPY, whose count of sends cannot be made again");
  if (numbered && found->stamp_key != 0)
    out.push_back("a socket that numbers the time stamps of what it sends (SOF_TIMESTAMPING_OPT_ID) and has begun to");
}

void take_busy_poll_budget(int fd, store::Socket& socket) {
  const int budget = proc::read_busy_poll_budget(fd).value_or(0);
  const auto* raw = reinterpret_cast<const uint8_t*>(&budget);
  if (budget != 0) socket.options.push_back({"SO_BUSY_POLL_BUDGET", {raw, raw + sizeof budget}});
}

void take_values(int fd, store::Socket& socket) {
  for (const auto& kind : proc::socket_options(socket.family, socket.type, socket.protocol)) {
    std::array<uint8_t, 256> value{};
    auto size = static_cast<socklen_t>(value.size());
    if (::getsockopt(fd, kind.level, kind.option, value.data(), &size) != 0) continue;
    socket.options.push_back({kind.name, {value.begin(), value.begin() + size}});
  }
  // It counts where the socket polls, and keys count where it takes requests with data: that of the system else.
  if (int_option(fd, SOL_SOCKET, SO_BUSY_POLL).value_or(0) != 0 ||
      int_option(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL).value_or(0) != 0)
    take_busy_poll_budget(fd, socket);
  // To turn IP_ROUTER_ALERT off where it is off is an error, and kernels before 6.17 do not tell.
  const bool takes_data = int_option(fd, IPPROTO_TCP, TCP_FASTOPEN).value_or(0) != 0;
  const bool alerts = int_option(fd, IPPROTO_IP, IP_ROUTER_ALERT).value_or(0) != 0;
  std::erase_if(socket.options, [&](const store::SocketOption& option) {
    return (option.name == "TCP_FASTOPEN_KEY" && !takes_data) || (option.name == "IP_ROUTER_ALERT" && !alerts);
  });
}

}  // namespace

std::optional<int> int_option(int fd, int level, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(fd, level, option, &value, &size) != 0) return std::nullopt;
  return value;
}

std::vector<uint8_t> socket_name(int fd) { return address_by(fd, ::getsockname); }
std::vector<uint8_t> socket_peer_name(int fd) { return address_by(fd, ::getpeername); }

std::vector<uint8_t> socket_former_peer(int fd, int family) {
  std::vector<uint8_t> out(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  auto size = static_cast<socklen_t>(out.size());  // more would be refused
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERNAME, out.data(), &size) != 0) return {};
  out.resize(size);
  return out;
}

/// Nothing is sent, and nothing added: with MSG_PROBE the kernel only looks. What it refuses in the address, a port of
/// 0, it does not look at where a datagram is under way.
bool has_unfinished_datagram(int fd, int family) {
  constexpr int kProbe = 0x10;
  sockaddr_in6 nowhere{};
  nowhere.sin6_family = static_cast<sa_family_t>(family);
  const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof nowhere;
  return ::sendto(fd, "", 0, kProbe | MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&nowhere),
                  size) == 0;
}

SocketMemory socket_memory(int fd) {
  std::array<uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info.data(), &size) != 0) return {};
  return {info[SK_MEMINFO_RMEM_ALLOC], info[SK_MEMINFO_WMEM_ALLOC]};
}

bool has_saved_request(int fd) {
  constexpr int kSavedSyn = 28;  // TCP_SAVED_SYN, which is longer than a byte: that is told, and nothing taken
  char byte = 0;
  socklen_t size = sizeof byte;
  return ::getsockopt(fd, IPPROTO_TCP, kSavedSyn, &byte, &size) != 0 && errno == EINVAL && size > sizeof byte;
}

int poll_socket(int fd) {
  pollfd poll{fd, POLLIN | POLLPRI | POLLRDHUP, 0};
  return ::poll(&poll, 1, 0) == 1 ? poll.revents : 0;
}

Result<std::vector<std::string>> take_socket_options(int fd, bool values, store::Socket& socket) {
  if (values) take_values(fd, socket);
  std::vector<std::string> obstacles;
  CKPT_TRY_ASSIGN(bool readable, take_filter(fd, socket.filter));
  if (!readable) obstacles.push_back("a socket with an eBPF filter (SO_ATTACH_BPF), which cannot be read");
  find_unsupported(fd, socket, obstacles);
  find_hidden(fd, socket, obstacles);
  return obstacles;
}

}  // namespace ckpt::capture
