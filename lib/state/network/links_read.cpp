#include <fmt/format.h>
#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "lib/state/network/link_kinds.h"
#include "lib/state/network/links.h"

namespace ckpt::state {

namespace {

using proc::Octets;
using store::NetworkLink;

std::string attribute_text(ByteSpan data) {
  const std::string_view text = as_text(data);
  return std::string(text.substr(0, text.find('\0')));
}

Octets attribute_octets(ByteSpan data) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data.data());
  return {bytes, bytes + data.size()};
}

struct ToldLink {
  ifinfomsg head{};
  ByteSpan attributes;

  explicit ToldLink(const Octets& message) {
    std::memcpy(&head, message.data(), std::min(message.size(), sizeof head));
    attributes = proc::as_bytes(message).subspan(std::min(sizeof head, message.size()));
  }
  ByteSpan find(uint16_t type) const { return proc::find_attribute(attributes, type); }
  template <class T>
  T value(uint16_t type) const {
    return proc::value_of_attribute<T>(find(type));
  }
};

/// Of the options of a bridge those that are on, as they are in none that is new: a kernel that lacks one refuses to
/// turn it off, too.
Octets options_that_are_on(const Octets& data) {
  proc::RouteMessage out(nullptr, 0);
  const auto attributes = proc::parse_attributes(proc::as_bytes(data));
  for (const proc::RouteAttribute& one : attributes.value_or(std::vector<proc::RouteAttribute>())) {
    if (one.type != IFLA_BR_MULTI_BOOLOPT) {
      out.add(one.type, one.data);
      continue;
    }
    auto options = proc::value_of_attribute<br_boolopt_multi>(one.data);
    options.optmask &= options.optval;
    if (options.optmask != 0)
      out.add(one.type, {reinterpret_cast<const std::byte*>(&options), sizeof options});
  }
  return std::move(out.octets());
}

NetworkLink describe_link(const ToldLink& told) {
  NetworkLink out;
  out.index = told.head.ifi_index, out.flags = told.head.ifi_flags & kLinkFlags;
  out.name = attribute_text(told.find(IFLA_IFNAME)), out.alias = attribute_text(told.find(IFLA_IFALIAS));
  out.mtu = told.value<uint32_t>(IFLA_MTU), out.queue = told.value<uint32_t>(IFLA_TXQLEN);
  out.group = told.value<uint32_t>(IFLA_GROUP);
  out.address = attribute_octets(told.find(IFLA_ADDRESS));
  out.master = told.value<int>(IFLA_MASTER);
  const ByteSpan info = told.find(IFLA_LINKINFO);
  out.kind = attribute_text(proc::find_attribute(info, IFLA_INFO_KIND));
  // A number in another namespace is none here.
  if (told.find(IFLA_LINK_NETNSID).empty()) out.lower = told.value<int>(IFLA_LINK);
  if (const LinkKind* kind = find_link_kind(out.kind))
    out.data = keep_attributes(proc::find_attribute(info, IFLA_INFO_DATA), kind->data);
  if (out.kind == "bridge") out.data = options_that_are_on(out.data);
  if (attribute_text(proc::find_attribute(info, IFLA_INFO_SLAVE_KIND)) == "bridge")
    out.port = keep_attributes(proc::find_attribute(info, IFLA_INFO_SLAVE_DATA), bridge_port_attributes());
  return out;
}

/// Why a link cannot be made again; empty: it can.
std::string obstacle(const ToldLink& told, const NetworkLink& link) {
  constexpr uint16_t kProperties = IFLA_PROP_LIST;
  const bool is_loopback = (told.head.ifi_flags & IFF_LOOPBACK) != 0;
  if (!is_loopback && link.kind.empty()) return "hardware";
  if (!is_loopback && find_link_kind(link.kind) == nullptr) return link.kind;
  const ByteSpan data = proc::find_attribute(told.find(IFLA_LINKINFO), IFLA_INFO_DATA);
  if (link.kind == "macvlan") {
    if (link.lower == 0) return "macvlan on an interface outside";
    if (!proc::find_attribute(data, IFLA_MACVLAN_MACADDR_DATA).empty()) return "macvlan with a list of sources";
  }
  auto is_on = [](ByteSpan in, uint16_t type) {
    return proc::value_of_attribute<uint8_t>(proc::find_attribute(in, type)) != 0;
  };
  if (link.kind == "bridge" && is_on(data, IFLA_BR_VLAN_FILTERING)) return "bridge that filters VLANs";
  if (is_on(told.find(IFLA_XDP), IFLA_XDP_ATTACHED)) return "with an XDP program";
  if (!told.find(kProperties).empty()) return "with a second name";
  return "";
}

}  // namespace

Result<std::vector<NetworkLink>> read_links(proc::RouteSocket& socket, std::vector<std::string>& beyond) {
  CKPT_TRY_ASSIGN(const std::vector<Octets> told, socket.dump(RTM_GETLINK, Octets(sizeof(ifinfomsg))));
  std::vector<NetworkLink> out;
  for (const Octets& one : told) {
    const ToldLink all(one);
    NetworkLink link = describe_link(all);
    if (const std::string why = obstacle(all, link); !why.empty())
      beyond.push_back(fmt::format("interface {} ({}{})", link.name, why, (link.flags & IFF_UP) != 0 ? ", up" : ""));
    else
      out.push_back(std::move(link));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return out;
}

bool leads_outside(const NetworkLink& link) { return link.kind == "veth" && link.lower == 0; }

bool is_link_name(const std::string& name) {
  const auto is_strange = [](unsigned char c) { return std::isspace(c) != 0 || c == '/' || c == ':' || c == 0; };
  return !name.empty() && name.size() < IFNAMSIZ && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), is_strange);
}

namespace {

const NetworkLink* link_of_index(const std::vector<NetworkLink>& links, int index) {
  const auto at = std::find_if(links.begin(), links.end(), [&](const NetworkLink& l) { return l.index == index; });
  return at == links.end() ? nullptr : &*at;
}

bool link_fits(const std::vector<NetworkLink>& links, const NetworkLink& link) {
  const LinkKind* kind = find_link_kind(link.kind);
  const bool is_loopback = link.kind.empty();
  if ((kind == nullptr && !is_loopback) || is_loopback != (link.index == 1) || is_loopback != (link.name == "lo"))
    return false;
  if (link.master != 0) {
    const NetworkLink* master = link_of_index(links, link.master);
    if (master == nullptr || master->kind != "bridge" || master == &link) return false;
  }
  if (link.kind == "veth" && link.lower != 0) {
    const NetworkLink* peer = link_of_index(links, link.lower);
    if (peer == nullptr || peer == &link || peer->kind != "veth" || peer->lower != link.index) return false;
  }
  if (link.kind == "macvlan") {
    const NetworkLink* lower = link_of_index(links, link.lower);
    if (lower == nullptr || lower->kind == "macvlan") return false;
  }
  const bool has_room = std::max(link.data.size(), link.port.size()) <= store::kMostOfMessage &&
                        link.address.size() <= store::kMostOfAddress;
  return has_room && (kind == nullptr || has_only(link.data, kind->data)) &&
         has_only(link.port, bridge_port_attributes());
}

}  // namespace

Result<void> validate_links(const std::vector<NetworkLink>& links) {
  constexpr size_t kMost = 4096, kLongestAlias = 255;
  if (links.size() > kMost) return fail(Code::kCorrupt, "network namespace", "has too many interfaces");
  std::set<int> indexes;
  std::set<std::string> names;
  for (const NetworkLink& link : links) {
    const bool is_plain = is_link_name(link.name) && link.alias.size() <= kLongestAlias &&
                          link.alias.find('\0') == std::string::npos;
    if (!is_plain) return fail(Code::kCorrupt, link.name, "is no name of an interface");
    if (!indexes.insert(link.index).second || !names.insert(link.name).second || !link_fits(links, link))
      return fail(Code::kCorrupt, link.name, "is no interface that makes sense");
  }
  return {};
}

}  // namespace ckpt::state
