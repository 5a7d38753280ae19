#include "lib/state/sockets/map_addresses.h"

#include <arpa/inet.h>

#include <cstring>

#include "lib/proc/socket_name.h"

namespace ckpt::restore {

namespace {

constexpr size_t kFourAt = 12;  ///< of the IPv4 address in ::ffff:a.b.c.d

bool is_four(const in6_addr& address) { return IN6_IS_ADDR_V4MAPPED(&address); }

bool parse_address(const std::string& text, in6_addr& out) {
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) != 1) return ::inet_pton(AF_INET6, text.c_str(), &out) == 1;
  out = {};
  out.s6_addr[10] = out.s6_addr[11] = 0xff;
  std::memcpy(out.s6_addr + kFourAt, &four, sizeof four);
  return true;
}

/// Neither the wildcard nor multicast or broadcast.
bool is_of_one_host(const in6_addr& address) {
  if (!is_four(address)) return !IN6_IS_ADDR_UNSPECIFIED(&address) && !IN6_IS_ADDR_MULTICAST(&address);
  in_addr_t four = 0;
  std::memcpy(&four, address.s6_addr + kFourAt, sizeof four);
  four = ntohl(four);
  return four != INADDR_ANY && four != INADDR_BROADCAST && !IN_MULTICAST(four);
}

/// Nothing: `name` has no address of the internet.
bool address_in(const std::vector<uint8_t>& name, in6_addr& out) {
  const auto family = proc::address_of<sockaddr>(name).sa_family;
  if (family == AF_INET6 && name.size() >= sizeof(sockaddr_in6)) {
    out = proc::address_of<sockaddr_in6>(name).sin6_addr;
    return true;
  }
  if (family != AF_INET || name.size() < sizeof(sockaddr_in)) return false;
  out = {};
  out.s6_addr[10] = out.s6_addr[11] = 0xff;
  std::memcpy(out.s6_addr + kFourAt, name.data() + offsetof(sockaddr_in, sin_addr), sizeof(in_addr));
  return true;
}

/// The one that it now has, if it is another.
const MappedAddress* map_name(const std::vector<MappedAddress>& addresses, std::vector<uint8_t>& name) {
  in6_addr now{};
  if (!address_in(name, now)) return nullptr;
  for (const MappedAddress& address : addresses) {
    if (std::memcmp(&address.from, &now, sizeof now) != 0) continue;
    const bool four = proc::address_of<sockaddr>(name).sa_family == AF_INET;
    if (four)
      std::memcpy(name.data() + offsetof(sockaddr_in, sin_addr), address.to.s6_addr + kFourAt, sizeof(in_addr));
    else
      std::memcpy(name.data() + offsetof(sockaddr_in6, sin6_addr), &address.to, sizeof address.to);
    return &address;
  }
  return nullptr;
}

}  // namespace

Result<MappedAddress> parse_mapped_address(const std::string& text) {
  MappedAddress out;
  out.text = text;
  const size_t equals = text.find('=');
  if (equals == std::string::npos || !parse_address(text.substr(0, equals), out.from) ||
      !parse_address(text.substr(equals + 1), out.to))
    return fail(Code::kUsage, "--map-address " + text, "is not OLD=NEW with two addresses, as in 10.0.0.1=10.0.1.1");
  if (is_four(out.from) != is_four(out.to))
    return fail(Code::kUsage, "--map-address " + text, "is of an IPv4 and an IPv6 address");
  if (!is_of_one_host(out.from) || !is_of_one_host(out.to))
    return fail(Code::kUsage, "--map-address " + text, "is of an address that no single host has");
  return out;
}

Result<void> map_addresses(const std::vector<MappedAddress>& addresses, std::vector<store::Socket>& sockets) {
  if (addresses.empty()) return {};
  for (store::Socket& socket : sockets) {
    if (socket.family != AF_INET && socket.family != AF_INET6) continue;
    if (const MappedAddress* mapped = map_name(addresses, socket.name)) {
      if (!proc::is_local_address(socket.name)) {
        return fail(
            Code::kUsage, "--map-address " + mapped->text,
            "leads to an address that this host does not have: no socket can be " + proc::name_text(socket.name));
      }
      socket.foreign_address = false;
    }
    map_name(addresses, socket.peer_name);
    for (store::SocketMessage& message : socket.messages) {
      map_name(addresses, message.from);
      map_name(addresses, message.to);
    }
  }
  return {};
}

}  // namespace ckpt::restore
