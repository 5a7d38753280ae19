#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>

#include "lib/base/io.h"
#include "lib/state/network/link_kinds.h"
#include "lib/state/network/links.h"

namespace ckpt::state {

namespace {

using proc::Octets;
using proc::RouteMessage;
using proc::RouteSocket;
using store::NetworkLink;

ifinfomsg link_head(int index, uint32_t flags = 0, uint32_t change = 0) {
  ifinfomsg out{};
  out.ifi_index = index, out.ifi_flags = flags, out.ifi_change = change;
  return out;
}

void add_octets(RouteMessage& out, uint16_t type, const Octets& octets) {
  if (!octets.empty()) out.add(type, proc::as_bytes(octets));
}

/// What a link has from the beginning.
void add_basics(RouteMessage& out, const NetworkLink& link) {
  out.add_text(IFLA_IFNAME, link.name);
  out.add_value<uint32_t>(IFLA_TXQLEN, link.queue);
  out.add_value<uint32_t>(IFLA_GROUP, link.group);
  add_octets(out, IFLA_ADDRESS, link.address);
  // The one of a bridge is the least of its ports, unless it is set.
  if (link.kind != "bridge") out.add_value<uint32_t>(IFLA_MTU, link.mtu);
}

const NetworkLink* other_end(const std::vector<NetworkLink>& links, const NetworkLink& link) {
  for (const NetworkLink& one : links) {
    if (one.index == link.lower) return &one;
  }
  return nullptr;
}

void add_veth(RouteMessage& out, const std::vector<NetworkLink>& links, const NetworkLink& link, const VethEnd* end,
              const Outside* outside) {
  const size_t data = out.open(IFLA_INFO_DATA);
  const NetworkLink* peer = end == nullptr ? other_end(links, link) : nullptr;
  const ifinfomsg head = link_head(peer == nullptr ? 0 : peer->index);
  const size_t info = out.open(VETH_INFO_PEER, &head, sizeof head);
  if (peer != nullptr) {
    add_basics(out, *peer);
  } else {
    out.add_text(IFLA_IFNAME, end->name);
    out.add_value<uint32_t>(IFLA_MTU, link.mtu);
    out.add_value<int>(IFLA_NET_NS_FD, outside->handle());
  }
  out.close(info);
  out.close(data);
}

const VethEnd* end_of(const NetworkLink& link, const std::map<std::string, VethEnd>& ends) {
  const auto at = leads_outside(link) ? ends.find(link.name) : ends.end();
  return at == ends.end() ? nullptr : &at->second;
}

Result<void> name_link(Result<void> done, const NetworkLink& link, const VethEnd* end, const char* what) {
  if (done) return {};
  Error error = std::move(done).error();
  error.subject = end == nullptr ? "interface " + link.name
                                 : fmt::format("interface {}, its other end {}", link.name, end->name);
  error.message = std::string(what) + ": " + error.message;
  return error;
}

Result<void> make_link(RouteSocket& socket, const std::vector<NetworkLink>& links, const NetworkLink& link,
                       const VethEnd* end, const Outside* outside) {
  RouteMessage out(link_head(link.index));
  add_basics(out, link);
  if (link.kind == "macvlan") out.add_value<int>(IFLA_LINK, link.lower);
  const size_t info = out.open(IFLA_LINKINFO);
  out.add_text(IFLA_INFO_KIND, link.kind);
  if (link.kind == "veth") add_veth(out, links, link, end, outside);
  else add_octets(out, IFLA_INFO_DATA, link.data);
  out.close(info);
  return name_link(socket.ask(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, out.octets()), link, end, "cannot be made");
}

/// The one of two ends that comes first makes both.
bool is_made_with_another(const NetworkLink& link) {
  return link.kind == "veth" && link.lower != 0 && link.lower < link.index;
}

}  // namespace

Result<Outside> Outside::here() {
  CKPT_TRY_ASSIGN(UniqueFd handle, io::open_file("/proc/thread-self/ns/net", O_RDONLY));
  CKPT_TRY_ASSIGN(RouteSocket socket, RouteSocket::open(NETLINK_ROUTE));
  return Outside(std::move(handle), std::move(socket));
}

Result<void> Outside::connect(const VethEnd& end) {
  CKPT_TRY_ASSIGN(const std::vector<Octets> told, socket_.dump(RTM_GETLINK, Octets(sizeof(ifinfomsg))));
  int index = 0, bridge = 0;
  for (const Octets& one : told) {
    const ByteSpan all = proc::as_bytes(one);
    if (all.size() < sizeof(ifinfomsg)) continue;
    ifinfomsg head{};
    std::memcpy(&head, all.data(), sizeof head);
    const std::string_view text = as_text(proc::find_attribute(all.subspan(sizeof head), IFLA_IFNAME));
    const std::string_view name = text.substr(0, text.find('\0'));
    if (name == end.name) index = head.ifi_index;
    if (name == end.bridge) bridge = head.ifi_index;
  }
  if (index == 0) return fail(Code::kNotFound, end.name, "is gone");
  if (bridge == 0 && !end.bridge.empty()) return fail(Code::kNotFound, end.bridge, "no such interface");
  RouteMessage up(link_head(index, IFF_UP, IFF_UP));
  if (bridge != 0) up.add_value<int>(IFLA_MASTER, bridge);
  auto done = socket_.ask(RTM_NEWLINK, 0, up.octets());
  if (!done) done.error().subject = end.bridge.empty() ? end.name : end.name + ", as a port of " + end.bridge;
  return done;
}

Result<void> make_links(RouteSocket& socket, const std::vector<NetworkLink>& links,
                        const std::map<std::string, VethEnd>& ends, Outside* outside) {
  for (const bool lies_on_another : {false, true}) {
    for (const NetworkLink& link : links) {
      if (link.kind.empty() || is_made_with_another(link) || (link.kind == "macvlan") != lies_on_another) continue;
      const VethEnd* end = end_of(link, ends);
      if (leads_outside(link) && (end == nullptr || outside == nullptr))
        return fail(Code::kUsage, "interface " + link.name, "has its other end outside, and it is not said where");
      CKPT_TRY(make_link(socket, links, link, end, outside));
    }
  }
  return {};
}

namespace {

Result<void> join_bridge(RouteSocket& socket, const NetworkLink& link) {
  RouteMessage out(link_head(link.index));
  out.add_value<int>(IFLA_MASTER, link.master);
  CKPT_TRY(name_link(socket.ask(RTM_NEWLINK, 0, out.octets()), link, nullptr, "cannot become a port of its bridge"));
  if (link.port.empty()) return {};
  RouteMessage port(link_head(link.index));
  const size_t info = port.open(IFLA_LINKINFO);
  port.add_text(IFLA_INFO_SLAVE_KIND, "bridge");
  add_octets(port, IFLA_INFO_SLAVE_DATA, link.port);
  port.close(info);
  return name_link(socket.ask(RTM_NEWLINK, 0, port.octets()), link, nullptr, "cannot be the port that it was");
}

/// What is left to be set, and whether it is up.
Result<void> finish_link(RouteSocket& socket, const NetworkLink& link, uint32_t mtu) {
  RouteMessage out(link_head(link.index, link.flags, kLinkFlags));
  if (mtu != link.mtu) out.add_value<uint32_t>(IFLA_MTU, link.mtu);
  if (!link.alias.empty()) out.add_text(IFLA_IFALIAS, link.alias);
  if (link.kind.empty()) {  // nobody has made it
    out.add_value<uint32_t>(IFLA_TXQLEN, link.queue);
    out.add_value<uint32_t>(IFLA_GROUP, link.group);
  }
  return name_link(socket.ask(RTM_NEWLINK, 0, out.octets()), link, nullptr, "cannot be set up");
}

}  // namespace

Result<void> raise_links(RouteSocket& socket, const std::vector<NetworkLink>& links,
                         const std::map<std::string, VethEnd>& ends, Outside* outside) {
  for (const NetworkLink& link : links) {
    if (link.master != 0) CKPT_TRY(join_bridge(socket, link));
  }
  std::vector<std::string> ignored;
  CKPT_TRY_ASSIGN(const std::vector<NetworkLink> made, read_links(socket, ignored));
  for (const NetworkLink& link : links) {
    uint32_t mtu = 0;
    for (const NetworkLink& one : made) mtu = one.index == link.index ? one.mtu : mtu;
    CKPT_TRY(finish_link(socket, link, mtu));
  }
  for (const NetworkLink& link : links) {
    if (const VethEnd* end = end_of(link, ends); end != nullptr && outside != nullptr)
      CKPT_TRY(outside->connect(*end));
  }
  return {};
}

}  // namespace ckpt::state
