// What a network namespace has: what the manifest says of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

/// A file below /proc/sys.
struct KernelSetting {
  std::string path, value;
  bool operator==(const KernelSetting&) const = default;
};

struct NetworkLink {
  int index = 0;
  std::string name, kind;  ///< `kind`, as rtnetlink names it, is empty of the loopback interface
  std::string alias;
  uint32_t flags = 0, mtu = 0, queue = 0, group = 0;
  std::vector<uint8_t> address;
  int master = 0;  ///< index of the bridge that it is a port of; 0: of none
  int lower = 0;   ///< of a veth its other end, of a macvlan what it is on; 0: that is outside
  std::vector<uint8_t> data, port;  ///< rtnetlink's attributes of its kind, and of what it is in its bridge
  bool operator==(const NetworkLink&) const = default;
};

/// An rtnetlink message, without its nlmsghdr.
struct NetworkMessage {
  std::vector<uint8_t> message;
  bool operator==(const NetworkMessage&) const = default;
};

/// Of an own "net". Where there is nothing but a loopback interface with what it gets by itself: no links, addresses,
/// routes, rules and neighbours.
struct Network {
  bool loopback_up = false;
  std::vector<KernelSetting> settings;  ///< those that are not as in a new namespace
  std::vector<std::string> beyond;       ///< what else is there, in words: it does not go with the image
  std::vector<NetworkLink> links;
  std::vector<NetworkMessage> addresses, routes, rules, neighbours;
  std::string filters;  ///< of nftables, as it lists them
  bool has_content() const { return !links.empty(); }
  bool operator==(const Network&) const = default;
};

constexpr size_t kMostOfMessage = 1 << 15, kMostOfAddress = 32;

template <class A>
void describe(A& a, typename A::template Of<KernelSetting> s) {
  a.text("path", s.path);
  a.text("value", s.value);
}

template <class A>
void describe(A& a, typename A::template Of<NetworkLink> l) {
  a.number("index", l.index, 1);
  a.text("name", l.name);
  a.text("kind", l.kind);
  a.text("alias", l.alias);
  a.number("flags", l.flags);
  a.number("mtu", l.mtu);
  a.number("queue", l.queue);
  a.number("group", l.group);
  a.octets("address", l.address, 0, kMostOfAddress);
  a.number("master", l.master, 0);
  a.number("lower", l.lower, 0);
  a.octets("data", l.data, 0, kMostOfMessage);
  a.octets("port", l.port, 0, kMostOfMessage);
}

template <class A>
void describe(A& a, typename A::template Of<NetworkMessage> m) {
  a.octets("message", m.message, 1, kMostOfMessage);
}

template <class A>
void describe(A& a, typename A::template Of<Network> n) {
  a.flag("loopback_up", n.loopback_up);
  a.list("settings", n.settings);
  a.texts("beyond", n.beyond);
  a.optional().list("links", n.links);
  a.optional().list("addresses", n.addresses);
  a.optional().list("routes", n.routes);
  a.optional().list("rules", n.rules);
  a.optional().list("neighbours", n.neighbours);
  a.optional().text("filters", n.filters);
}

}  // namespace ckpt::store
