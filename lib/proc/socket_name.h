// Addresses of sockets as the kernel gives them: a struct sockaddr_* of its exact length.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ckpt::proc {

using SocketName = std::vector<uint8_t>;

/// "127.0.0.1:80", "[::1]:80", "/run/x", "@abstract", for messages; empty: no name.
std::string name_text(const SocketName& name);

/// The path or abstract name (with its leading NUL) of a struct sockaddr_un; empty: none.
std::string unix_name(const SocketName& name);
bool is_abstract(const SocketName& name);

/// IPv4 written as IPv6 (::ffff:a.b.c.d) becomes IPv4, as it is in the packets.
SocketName plain_name(const SocketName& name);

/// Of a name of the internet: not one of the addresses that stand for all.
bool has_address(const SocketName& name);
/// Whether this machine has the address: a socket can be bound to it. The port does not matter.
bool is_local_address(const SocketName& name);

/// As bind and connect take it.
inline const sockaddr* raw_address(const SocketName& name) { return reinterpret_cast<const sockaddr*>(name.data()); }
/// Of a name of the internet, in network order: it lies at the same place in both families.
uint16_t port_of(const SocketName& name);

/// The struct, what is missing filled with zeros.
template <class Address>
Address address_of(const SocketName& name) {
  Address out{};
  if (!name.empty()) std::memcpy(&out, name.data(), name.size() < sizeof out ? name.size() : sizeof out);
  return out;
}
template <class Address>
SocketName name_of(const Address& address) {
  auto* raw = reinterpret_cast<const uint8_t*>(&address);
  return {raw, raw + sizeof address};
}

}  // namespace ckpt::proc
