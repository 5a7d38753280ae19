#include "lib/state/network/content.h"

#include <linux/netlink.h>

#include "lib/state/network/filters.h"
#include "lib/state/network/loopback.h"
#include "lib/state/network/messages.h"
#include "lib/state/network/others.h"
#include "lib/state/network/settings.h"

namespace ckpt::state {

namespace {

struct NetworkPart {
  MessageKind kind;
  Messages store::Network::*list;
};
/// In the order in which they can be made.
constexpr NetworkPart kNetworkParts[] = {{MessageKind::kAddress, &store::Network::addresses},
                           {MessageKind::kNeighbour, &store::Network::neighbours},
                           {MessageKind::kRule, &store::Network::rules},
                           {MessageKind::kRoute, &store::Network::routes}};

}  // namespace

Result<store::Network> read_content() {
  store::Network out;
  CKPT_TRY_ASSIGN(proc::RouteSocket socket, proc::RouteSocket::open(NETLINK_ROUTE));
  CKPT_TRY_ASSIGN(out.links, read_links(socket, out.beyond));
  for (const NetworkPart& part : kNetworkParts) {
    CKPT_TRY_ASSIGN(out.*part.list, read_messages(socket, part.kind, out.beyond));
  }
  CKPT_TRY(read_others(socket, out.beyond));
  return out;
}

Result<void> validate_network(const store::Network& network) {
  CKPT_TRY(validate_settings(network.settings));
  CKPT_TRY(validate_links(network.links));
  for (const NetworkPart& part : kNetworkParts) CKPT_TRY(validate_messages(network.*part.list, part.kind));
  return validate_filters(network.filters);
}

store::Network without_links(const store::Network& network) {
  store::Network out;
  out.loopback_up = network.loopback_up;
  for (const store::KernelSetting& setting : network.settings) {
    if (!is_of_link(setting)) out.settings.push_back(setting);
  }
  return out;
}

namespace {

/// Until what it had is there no link is to choose an address by itself.
void choose_no_addresses(const std::vector<store::NetworkLink>& links) {
  for (const store::NetworkLink& link : links) {
    const bool chooses = !link.kind.empty();
    if (chooses) (void)write_setting({"net/ipv6/conf/" + link.name + "/addr_gen_mode", "1"});  // without IPv6: none
  }
}

Result<void> choose_addresses(const store::Network& network) {
  for (const store::NetworkLink& link : network.links) {
    if (!link.kind.empty()) (void)write_setting({"net/ipv6/conf/" + link.name + "/addr_gen_mode", "0"});
  }
  for (const store::KernelSetting& setting : network.settings) {
    if (is_choice_of_addresses(setting)) CKPT_TRY(write_setting(setting));
  }
  return {};
}

}  // namespace

Result<void> make_network(const store::Network& network, const std::map<std::string, VethEnd>& ends, Outside* outside,
                          const std::function<Result<void>()>& before_up) {
  CKPT_TRY_ASSIGN(proc::RouteSocket socket, proc::RouteSocket::open(NETLINK_ROUTE));
  CKPT_TRY(make_links(socket, network.links, ends, outside));
  for (const store::KernelSetting& setting : network.settings) {
    if (!is_choice_of_addresses(setting)) CKPT_TRY(write_setting(setting));
  }
  CKPT_TRY(make_filters(network.filters));
  CKPT_TRY(before_up());
  if (!network.has_content()) {
    if (network.loopback_up) CKPT_TRY(raise_loopback());
    return choose_addresses(network);
  }
  choose_no_addresses(network.links);
  CKPT_TRY(raise_links(socket, network.links, ends, outside));
  for (const NetworkPart& part : kNetworkParts) CKPT_TRY(make_messages(socket, part.kind, network.*part.list));
  CKPT_TRY(choose_addresses(network));
  for (const NetworkPart& part : kNetworkParts) CKPT_TRY(remove_others(socket, part.kind, network.*part.list));
  return {};
}

}  // namespace ckpt::state
