#include "lib/state/network/others.h"

#include <fmt/format.h>
#include <linux/if_bridge.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>
#include <linux/rtnetlink.h>
#include <linux/xfrm.h>
#include <sys/socket.h>

#include <algorithm>

namespace ckpt::state {

namespace {

using proc::Octets;

template <class Head>
Head object_head(const Octets& message) {
  Head out{};
  std::memcpy(&out, message.data(), std::min(message.size(), sizeof out));
  return out;
}

/// Calls visit(head) for each object; where the kernel has no such objects there are none.
template <class Head, class Visit>
Result<void> each_object(proc::RouteSocket& socket, uint16_t type, const Head& request, Visit visit) {
  auto told = socket.dump(type, proc::RouteMessage(request).octets());
  if (!told && told.error().code == Code::kUnsupported) return {};
  if (!told) return std::move(told).error();
  for (const Octets& one : *told) visit(object_head<Head>(one), one);
  return {};
}

Result<void> read_ipsec(std::vector<std::string>& beyond) {
  auto socket = proc::RouteSocket::open(NETLINK_XFRM);
  if (!socket && socket.error().sys_errno == EPROTONOSUPPORT) return {};
  if (!socket) return std::move(socket).error();
  bool has_some = false;
  auto note = [&](const auto&, const Octets&) { has_some = true; };
  auto told = each_object(*socket, XFRM_MSG_GETSA, xfrm_usersa_id{}, note);
  if (told) told = each_object(*socket, XFRM_MSG_GETPOLICY, xfrm_userpolicy_id{}, note);
  if (has_some) beyond.emplace_back("states or policies of IPsec");
  if (!told && told.error().code == Code::kPermission)
    beyond.emplace_back("states or policies of IPsec, perhaps (CAP_NET_ADMIN tells)");
  else CKPT_TRY(std::move(told));
  return {};
}

}  // namespace

Result<void> read_others(proc::RouteSocket& socket, std::vector<std::string>& beyond) {
  auto note = [&](std::string what) {
    if (std::count(beyond.begin(), beyond.end(), what) == 0) beyond.push_back(std::move(what));
  };
  // Those that links have by themselves have no number.
  CKPT_TRY(each_object(socket, RTM_GETQDISC, tcmsg{}, [&](const tcmsg& head, const Octets& all) {
    if (head.tcm_handle == 0) return;
    const auto text = as_text(proc::find_attribute(proc::as_bytes(all).subspan(sizeof head), TCA_KIND));
    note(fmt::format("a queueing discipline ({})", text.substr(0, text.find('\0'))));
  }));
  CKPT_TRY(each_object(socket, RTM_GETNEXTHOP, nhmsg{}, [&](const nhmsg&, const Octets&) { note("nexthop objects"); }));
  ndmsg of_bridges{};
  of_bridges.ndm_family = AF_BRIDGE;
  CKPT_TRY(each_object(socket, RTM_GETNEIGH, of_bridges, [&](const ndmsg& head, const Octets&) {
    if (head.ndm_family == AF_BRIDGE && (head.ndm_state & NUD_NOARP) != 0 && (head.ndm_flags & NTF_SELF) == 0)
      note("static entries of a bridge");
  }));
  return read_ipsec(beyond);
}

}  // namespace ckpt::state
