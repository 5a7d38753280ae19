#include "lib/state/network/link_kinds.h"

#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <algorithm>
#include <array>

namespace ckpt::state {

const uint32_t kLinkFlags = IFF_UP | IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST | IFF_DYNAMIC | IFF_DEBUG;

const LinkKind* find_link_kind(const std::string& name) {
  static const std::array<LinkKind, 5> kKinds = {{
      {"veth", {}},
      {"dummy", {}},
      {"ifb", {}},
      {"macvlan", {IFLA_MACVLAN_MODE, IFLA_MACVLAN_FLAGS}},
      {"bridge",
       {IFLA_BR_FORWARD_DELAY,
        IFLA_BR_HELLO_TIME,
        IFLA_BR_MAX_AGE,
        IFLA_BR_AGEING_TIME,
        IFLA_BR_STP_STATE,
        IFLA_BR_PRIORITY,
        IFLA_BR_VLAN_PROTOCOL,
        IFLA_BR_GROUP_FWD_MASK,
        IFLA_BR_MCAST_ROUTER,
        IFLA_BR_MCAST_SNOOPING,
        IFLA_BR_MCAST_QUERY_USE_IFADDR,
        IFLA_BR_MCAST_QUERIER,
        IFLA_BR_MCAST_HASH_MAX,
        IFLA_BR_MCAST_LAST_MEMBER_CNT,
        IFLA_BR_MCAST_STARTUP_QUERY_CNT,
        IFLA_BR_MCAST_LAST_MEMBER_INTVL,
        IFLA_BR_MCAST_MEMBERSHIP_INTVL,
        IFLA_BR_MCAST_QUERIER_INTVL,
        IFLA_BR_MCAST_QUERY_INTVL,
        IFLA_BR_MCAST_QUERY_RESPONSE_INTVL,
        IFLA_BR_MCAST_STARTUP_QUERY_INTVL,
        IFLA_BR_NF_CALL_IPTABLES,
        IFLA_BR_NF_CALL_IP6TABLES,
        IFLA_BR_NF_CALL_ARPTABLES,
        IFLA_BR_VLAN_DEFAULT_PVID,
        IFLA_BR_VLAN_STATS_ENABLED,
        IFLA_BR_MCAST_STATS_ENABLED,
        IFLA_BR_MCAST_IGMP_VERSION,
        IFLA_BR_MCAST_MLD_VERSION,
        IFLA_BR_MULTI_BOOLOPT}},
  }};
  const auto at = std::find_if(kKinds.begin(), kKinds.end(), [&](const LinkKind& k) { return name == k.name; });
  return at == kKinds.end() ? nullptr : &*at;
}

const std::vector<uint16_t>& bridge_port_attributes() {
  static const std::vector<uint16_t> kPort = {
      IFLA_BRPORT_PRIORITY,       IFLA_BRPORT_COST,         IFLA_BRPORT_MODE,           IFLA_BRPORT_GUARD,
      IFLA_BRPORT_PROTECT,        IFLA_BRPORT_FAST_LEAVE,   IFLA_BRPORT_LEARNING,       IFLA_BRPORT_UNICAST_FLOOD,
      IFLA_BRPORT_PROXYARP,       IFLA_BRPORT_PROXYARP_WIFI, IFLA_BRPORT_MULTICAST_ROUTER,
      IFLA_BRPORT_MCAST_TO_UCAST, IFLA_BRPORT_MCAST_FLOOD,  IFLA_BRPORT_BCAST_FLOOD,    IFLA_BRPORT_GROUP_FWD_MASK,
      IFLA_BRPORT_NEIGH_SUPPRESS, IFLA_BRPORT_ISOLATED};
  return kPort;
}

proc::Octets keep_attributes(ByteSpan told, const std::vector<uint16_t>& kept) {
  proc::RouteMessage out(nullptr, 0);
  const auto attributes = proc::parse_attributes(told);
  for (const proc::RouteAttribute& one : attributes.value_or(std::vector<proc::RouteAttribute>())) {
    if (std::count(kept.begin(), kept.end(), one.type) != 0) out.add(one.type, one.data);
  }
  return std::move(out.octets());
}

bool has_only(const proc::Octets& octets, const std::vector<uint16_t>& kept) {
  const auto attributes = proc::parse_attributes(proc::as_bytes(octets));
  return attributes && std::all_of(attributes->begin(), attributes->end(), [&](const proc::RouteAttribute& one) {
           return std::count(kept.begin(), kept.end(), one.type) != 0;
         });
}

}  // namespace ckpt::state
