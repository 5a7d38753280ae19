// Which connections have both ends in the job.
#include <netinet/in.h>
#include <sys/stat.h>

#include <map>

#include "lib/engine/together.h"
#include "lib/proc/host.h"
#include "lib/proc/socket_name.h"

namespace ckpt::engine {

namespace {

/// The same address may be another interface's on another host.
bool is_of_one_host(const proc::SocketName& plain) {
  if (proc::address_of<sockaddr>(plain).sa_family == AF_INET) {
    constexpr uint32_t kLoopback = 127;
    return ntohl(proc::address_of<sockaddr_in>(plain).sin_addr.s_addr) >> 24 == kLoopback;
  }
  const auto six = proc::address_of<sockaddr_in6>(plain);
  return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr);
}

/// In the circle of 32-bit numbers.
bool is_between(uint32_t low, uint32_t value, uint32_t high) {
  return static_cast<int32_t>(value - low) >= 0 && static_cast<int32_t>(high - value) >= 0;
}

bool fits(const ConnectionEnd& sender, const ConnectionEnd& receiver) {
  return is_between(sender.unacknowledged, receiver.received, sender.sent);
}

}  // namespace

std::string own_network() {
  struct stat st {};
  const auto host = proc::read_host();
  if (::stat("/proc/thread-self/ns/net", &st) != 0 || !host) return "";
  return host->boot_id + " " + std::to_string(st.st_ino);
}

std::vector<ConnectionEnd> connection_ends(const std::vector<store::Socket>& sockets, const std::string& network) {
  std::vector<ConnectionEnd> out;
  for (const store::Socket& socket : sockets) {
    if (socket.tcp.state == 0 || socket.state != store::SocketState::kConnected) continue;
    const proc::SocketName local = proc::plain_name(socket.name), remote = proc::plain_name(socket.peer_name);
    ConnectionEnd end;
    end.local = proc::name_text(local), end.remote = proc::name_text(remote);
    if (is_of_one_host(local) || is_of_one_host(remote)) end.network = network;
    const store::TcpConnection& tcp = socket.tcp;
    end.has_sequences = tcp.send_sequence != 0 || tcp.receive_sequence != 0;
    end.sent = tcp.send_sequence, end.received = tcp.receive_sequence;
    end.unacknowledged = tcp.send_sequence - static_cast<uint32_t>(tcp.send_size);
    out.push_back(std::move(end));
  }
  return out;
}

namespace {

enum class Other { kNone, kUnfit, kThere };

/// What the members have of the other end of each of `rank`'s.
std::vector<Other> others_of(const std::vector<std::vector<ConnectionEnd>>& by_rank, uint32_t rank) {
  using Names = std::tuple<std::string_view, std::string_view, std::string_view>;
  std::multimap<Names, const ConnectionEnd*> all;
  for (const auto& ends : by_rank) {
    for (const ConnectionEnd& end : ends) all.emplace(Names(end.local, end.remote, end.network), &end);
  }
  std::vector<Other> out;
  for (const ConnectionEnd& mine : by_rank[rank]) {
    Other& other = out.emplace_back(Other::kNone);
    const auto [first, last] = all.equal_range(Names(mine.remote, mine.local, mine.network));
    for (auto it = first; it != last && other != Other::kThere; ++it) {
      const ConnectionEnd& end = *it->second;
      const bool fit = !mine.has_sequences || !end.has_sequences || (fits(mine, end) && fits(end, mine));
      other = fit ? Other::kThere : Other::kUnfit;
    }
  }
  return out;
}

std::vector<size_t> places_of(const std::vector<Other>& others, Other wanted) {
  std::vector<size_t> out;
  for (size_t i = 0; i < others.size(); ++i) {
    if (others[i] == wanted) out.push_back(i);
  }
  return out;
}

}  // namespace

std::vector<size_t> outside_connections(const std::vector<std::vector<ConnectionEnd>>& by_rank, uint32_t rank) {
  return places_of(others_of(by_rank, rank), Other::kNone);
}

std::vector<size_t> unfit_connections(const std::vector<std::vector<ConnectionEnd>>& by_rank, uint32_t rank) {
  return places_of(others_of(by_rank, rank), Other::kUnfit);
}

}  // namespace ckpt::engine
