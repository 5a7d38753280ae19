#include "lib/state/network/messages.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <set>

namespace ckpt::state {

namespace {

using proc::Octets;
using proc::RouteAttribute;
using proc::RouteMessage;
using store::NetworkMessage;

/// What of a kind there is to know: the messages that tell, make and remove it, and the attributes that are kept.
struct KindFacts {
  const char* name;
  uint16_t tell, make, remove;
  size_t head;
  std::vector<uint16_t> attributes;
};

/// Of rules, in kernels that are newer than the headers: DSCP, flow labels, masks of ports.
constexpr uint16_t kDscp = 25, kFlowLabel = 26, kFlowLabelMask = 27, kSourcePortMask = 28, kDestinationPortMask = 29,
                   kDscpMask = 30;

const KindFacts& facts_of_kind(MessageKind kind) {
  static const KindFacts kAddress{"an address", RTM_GETADDR, RTM_NEWADDR, RTM_DELADDR, sizeof(ifaddrmsg),
                             {IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS,
                              IFA_RT_PRIORITY}};
  static const KindFacts kRoute{"a route", RTM_GETROUTE, RTM_NEWROUTE, RTM_DELROUTE, sizeof(rtmsg),
                           {RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS,
                            RTA_MULTIPATH, RTA_FLOW, RTA_TABLE, RTA_VIA, RTA_PREF}};
  static const KindFacts kRule{"a routing rule", RTM_GETRULE, RTM_NEWRULE, RTM_DELRULE, sizeof(fib_rule_hdr),
                          {FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_GOTO, FRA_PRIORITY, FRA_FWMARK, FRA_FLOW, FRA_TUN_ID,
                           FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME,
                           FRA_L3MDEV, FRA_UID_RANGE, FRA_PROTOCOL, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE,
                           kDscp, kFlowLabel, kFlowLabelMask, kSourcePortMask, kDestinationPortMask, kDscpMask}};
  static const KindFacts kNeighbour{"a neighbour", RTM_GETNEIGH, RTM_NEWNEIGH, RTM_DELNEIGH, sizeof(ndmsg),
                               {NDA_DST, NDA_LLADDR}};
  switch (kind) {
    case MessageKind::kAddress: return kAddress;
    case MessageKind::kRoute: return kRoute;
    case MessageKind::kRule: return kRule;
    case MessageKind::kNeighbour: break;
  }
  return kNeighbour;
}

template <class Head>
Head message_head(const Octets& message) {
  Head out{};
  std::memcpy(&out, message.data(), std::min(message.size(), sizeof out));
  return out;
}

ByteSpan attributes_of(const Octets& message, size_t head) {
  return proc::as_bytes(message).subspan(std::min(NLMSG_ALIGN(head), message.size()));
}

bool has_attribute(const Octets& message, size_t head, uint16_t type) {
  return !proc::find_attribute(attributes_of(message, head), type).empty();
}

/// What is kept of one that the kernel told; nothing: it is not for us.
struct Taken {
  std::optional<RouteMessage> message;
  std::string beyond;  ///< why it cannot be made again; empty: it can
};

void copy_attributes(const KindFacts& kind, const Octets& told, RouteMessage& out,
                     const std::vector<uint16_t>& changed) {
  const auto attributes = proc::parse_attributes(attributes_of(told, kind.head));
  if (!attributes) return;
  for (const RouteAttribute& attribute : *attributes) {
    const bool is_kept = std::count(kind.attributes.begin(), kind.attributes.end(), attribute.type) != 0;
    if (is_kept && std::count(changed.begin(), changed.end(), attribute.type) == 0)
      out.add(attribute.type, attribute.data);
  }
}

/// Whether an address is new, being looked for, or the second one: the kernel finds that out again.
Taken take_address(const Octets& told) {
  constexpr uint32_t kGiven = IFA_F_NODAD | IFA_F_OPTIMISTIC | IFA_F_HOMEADDRESS | IFA_F_MANAGETEMPADDR |
                              IFA_F_NOPREFIXROUTE | IFA_F_MCAUTOJOIN;
  const KindFacts& kind = facts_of_kind(MessageKind::kAddress);
  auto head = message_head<ifaddrmsg>(told);
  const ByteSpan more = proc::find_attribute(attributes_of(told, kind.head), IFA_FLAGS);
  const uint32_t flags = (more.empty() ? head.ifa_flags : proc::value_of_attribute<uint32_t>(more)) & kGiven;
  head.ifa_flags = static_cast<uint8_t>(flags);
  Taken out{RouteMessage(head), ""};
  copy_attributes(kind, told, *out.message, {IFA_FLAGS, IFA_CACHEINFO});
  out.message->add_value(IFA_FLAGS, flags);
  const auto life = proc::value_of_attribute<ifa_cacheinfo>(
      proc::find_attribute(attributes_of(told, kind.head), IFA_CACHEINFO));
  constexpr uint32_t kForever = ~0u;
  if (life.ifa_valid != kForever && life.ifa_valid != 0) {
    const ifa_cacheinfo left{life.ifa_prefered, life.ifa_valid, 0, 0};
    out.message->add(IFA_CACHEINFO, {reinterpret_cast<const std::byte*>(&left), sizeof left});
  }
  return out;
}

/// The next hops of a route over several, without what the kernel says of each: that it is down, or in hardware.
std::optional<Octets> hops_to_give(ByteSpan told) {
  Octets out;
  for (size_t at = 0; at < told.size();) {
    rtnexthop hop{};
    if (told.size() - at < sizeof hop) return std::nullopt;
    std::memcpy(&hop, told.data() + at, sizeof hop);
    if (hop.rtnh_len < sizeof hop || hop.rtnh_len > told.size() - at) return std::nullopt;
    const ByteSpan rest = told.subspan(at + sizeof hop, hop.rtnh_len - sizeof hop);
    const auto attributes = proc::parse_attributes(rest);
    if (!attributes) return std::nullopt;
    for (const RouteAttribute& attribute : *attributes) {
      if (attribute.type != RTA_GATEWAY && attribute.type != RTA_VIA && attribute.type != RTA_FLOW)
        return std::nullopt;
    }
    hop.rtnh_flags &= RTNH_F_ONLINK;
    const auto *head = reinterpret_cast<const uint8_t*>(&hop), *data = reinterpret_cast<const uint8_t*>(rest.data());
    out.insert(out.end(), head, head + sizeof hop);
    out.insert(out.end(), data, data + rest.size());
    out.resize(RTNH_ALIGN(out.size()));
    at += RTNH_ALIGN(hop.rtnh_len);
  }
  return out;
}

Taken take_route(const Octets& told) {
  const KindFacts& kind = facts_of_kind(MessageKind::kRoute);
  auto head = message_head<rtmsg>(told);
  const bool is_made_again = head.rtm_family == AF_INET6 && head.rtm_protocol == RTPROT_KERNEL;
  const bool is_heard_again = head.rtm_protocol == RTPROT_REDIRECT || head.rtm_protocol == RTPROT_RA;
  if ((head.rtm_flags & RTM_F_CLONED) != 0 || is_made_again || is_heard_again) return {};
  if (has_attribute(told, kind.head, RTA_ENCAP)) return {std::nullopt, "a route with an encapsulation"};
  if (has_attribute(told, kind.head, RTA_NH_ID)) return {std::nullopt, "a route through a nexthop object"};
  head.rtm_flags &= RTNH_F_ONLINK;
  Taken out{RouteMessage(head), ""};
  copy_attributes(kind, told, *out.message, {RTA_MULTIPATH});
  if (has_attribute(told, kind.head, RTA_MULTIPATH)) {
    const auto hops = hops_to_give(proc::find_attribute(attributes_of(told, kind.head), RTA_MULTIPATH));
    if (!hops) return {std::nullopt, "a route over several next hops with an encapsulation"};
    out.message->add(RTA_MULTIPATH, proc::as_bytes(*hops));
  }
  return out;
}

Taken take_rule(const Octets& told) {
  const KindFacts& kind = facts_of_kind(MessageKind::kRule);
  auto head = message_head<fib_rule_hdr>(told);
  head.flags &= FIB_RULE_INVERT;
  Taken out{RouteMessage(head), ""};
  copy_attributes(kind, told, *out.message, {});
  // Of the first one the kernel does not tell it, and would choose another.
  if (!has_attribute(told, kind.head, FRA_PRIORITY)) out.message->add_value<uint32_t>(FRA_PRIORITY, 0);
  const auto attributes = proc::parse_attributes(attributes_of(told, kind.head));
  constexpr uint16_t kPadding = FRA_PAD;
  for (const RouteAttribute& attribute : attributes.value_or(std::vector<RouteAttribute>())) {
    const bool is_kept = std::count(kind.attributes.begin(), kind.attributes.end(), attribute.type) != 0;
    if (!is_kept && attribute.type != kPadding)
      return {std::nullopt, fmt::format("a routing rule with attribute {}, which ckpt does not know", attribute.type)};
  }
  return out;
}

Taken take_neighbour(const Octets& told) {
  const KindFacts& kind = facts_of_kind(MessageKind::kNeighbour);
  auto head = message_head<ndmsg>(told);
  const bool is_proxy = (head.ndm_flags & NTF_PROXY) != 0;
  const bool is_ip = head.ndm_family == AF_INET || head.ndm_family == AF_INET6;
  if (!is_ip || (!is_proxy && (head.ndm_state & NUD_PERMANENT) == 0)) return {};
  head.ndm_flags &= NTF_PROXY | NTF_ROUTER;
  head.ndm_state = is_proxy ? 0 : NUD_PERMANENT;
  head.ndm_type = 0;
  Taken out{RouteMessage(head), ""};
  copy_attributes(kind, told, *out.message, {});
  return out;
}

Taken take_message(MessageKind kind, const Octets& told) {
  if (told.size() < facts_of_kind(kind).head) return {};
  switch (kind) {
    case MessageKind::kAddress: return take_address(told);
    case MessageKind::kRoute: return take_route(told);
    case MessageKind::kRule: return take_rule(told);
    case MessageKind::kNeighbour: break;
  }
  return take_neighbour(told);
}

/// What to ask for, once for each family, and of neighbours for those that stand for others, too.
std::vector<Octets> questions(MessageKind kind) {
  std::vector<Octets> out;
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    Octets request(NLMSG_ALIGN(facts_of_kind(kind).head));
    request[0] = family;  // the first member of each of these heads
    out.push_back(request);
    if (kind != MessageKind::kNeighbour) continue;
    request[offsetof(ndmsg, ndm_flags)] = NTF_PROXY;
    out.push_back(request);
  }
  return out;
}

std::string with_address(const KindFacts& kind, const Octets& message) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  constexpr uint16_t kAddress = 1;  // IFA_ADDRESS, RTA_DST, FRA_DST, NDA_DST
  const ByteSpan address = proc::find_attribute(attributes_of(message, kind.head), kAddress);
  const size_t wanted = message[0] == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  if (address.size() != wanted || ::inet_ntop(message[0], address.data(), text.data(), text.size()) == nullptr)
    return kind.name;
  return fmt::format("{} ({})", kind.name, text.data());
}

Result<void> make_one(proc::RouteSocket& socket, MessageKind which, const Octets& message) {
  const KindFacts& kind = facts_of_kind(which);
  Octets given = message;
  // They were looked for on the network when they were new.
  if (which == MessageKind::kAddress && message[0] == AF_INET6) {
    RouteMessage anew(message_head<ifaddrmsg>(message));
    copy_attributes(kind, message, anew, {IFA_FLAGS});
    const auto flags = proc::value_of_attribute<uint32_t>(
        proc::find_attribute(attributes_of(message, kind.head), IFA_FLAGS));
    anew.add_value<uint32_t>(IFA_FLAGS, flags | IFA_F_NODAD);
    given = std::move(anew.octets());
  }
  // Routes of one destination stand in an order, which creating them keeps.
  const int flags = which == MessageKind::kRoute  ? NLM_F_CREATE | NLM_F_APPEND
                    : which == MessageKind::kRule ? NLM_F_CREATE | NLM_F_EXCL
                                                  : NLM_F_CREATE | NLM_F_REPLACE;
  auto done = socket.ask(kind.make, static_cast<uint16_t>(flags), given);
  if (done || done.error().sys_errno == EEXIST) return {};
  done.error().subject = with_address(kind, message);
  return done;
}

/// What tells one from another: of an address not its flags, nor how long it is left to it.
Octets key_of(MessageKind kind, const Octets& message) {
  if (kind != MessageKind::kAddress) return message;
  auto head = message_head<ifaddrmsg>(message);
  head.ifa_flags = head.ifa_scope = 0;
  RouteMessage out(head);
  copy_attributes(facts_of_kind(kind), message, out,
                  {IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_RT_PRIORITY});
  return out.octets();
}

}  // namespace

Result<Messages> read_messages(proc::RouteSocket& socket, MessageKind kind, std::vector<std::string>& beyond) {
  Messages out;
  for (const Octets& question : questions(kind)) {
    auto told = socket.dump(facts_of_kind(kind).tell, question);
    // A kernel without IPv6, or without rules.
    if (!told && (told.error().sys_errno == EOPNOTSUPP || told.error().sys_errno == EAFNOSUPPORT)) continue;
    if (!told) return std::move(told).error();
    for (const Octets& one : *told) {
      if (!one.empty() && one[0] != question[0]) continue;  // of another family, where the kernel has no such rules
      Taken taken = take_message(kind, one);
      if (!taken.beyond.empty() && std::count(beyond.begin(), beyond.end(), taken.beyond) == 0)
        beyond.push_back(taken.beyond);
      if (taken.message) out.push_back({std::move(taken.message->octets())});
    }
  }
  return out;
}

Result<void> validate_messages(const Messages& messages, MessageKind which) {
  const KindFacts& kind = facts_of_kind(which);
  constexpr size_t kMost = 1 << 16;
  if (messages.size() > kMost) return fail(Code::kCorrupt, "network namespace", "has too much in it");
  for (const NetworkMessage& one : messages) {
    const Error damaged(Code::kCorrupt, "network namespace", fmt::format("has {} that makes no sense", kind.name));
    if (one.message.size() < NLMSG_ALIGN(kind.head) || one.message.size() > store::kMostOfMessage) return damaged;
    if (one.message[0] != AF_INET && one.message[0] != AF_INET6) return damaged;
    const auto attributes = proc::parse_attributes(attributes_of(one.message, kind.head));
    if (!attributes) return damaged;
    for (const RouteAttribute& attribute : *attributes) {
      if (std::count(kind.attributes.begin(), kind.attributes.end(), attribute.type) == 0) return damaged;
      const bool is_hops = which == MessageKind::kRoute && attribute.type == RTA_MULTIPATH;
      if (is_hops && !hops_to_give(attribute.data)) return damaged;
    }
  }
  return {};
}

Result<void> make_messages(proc::RouteSocket& socket, MessageKind kind, const Messages& wanted) {
  std::vector<std::string> ignored;
  CKPT_TRY_ASSIGN(const Messages there, read_messages(socket, kind, ignored));
  std::vector<const NetworkMessage*> pending;
  for (const NetworkMessage& one : wanted) {
    if (std::find(there.begin(), there.end(), one) == there.end()) pending.push_back(&one);
  }
  // A route may lead through another one, which comes after it; how many of them one behind the other is a guess.
  constexpr int kPasses = 64;
  for (int pass = 1; !pending.empty(); ++pass) {
    std::vector<const NetworkMessage*> later;
    Error first;
    for (const NetworkMessage* one : pending) {
      auto made = make_one(socket, kind, one->message);
      if (made) continue;
      if (later.empty()) first = made.error();
      later.push_back(one);
    }
    if (later.size() == pending.size() || (pass == kPasses && !later.empty())) return first;
    pending = std::move(later);
  }
  return {};
}

Result<void> remove_others(proc::RouteSocket& socket, MessageKind kind, const Messages& wanted) {
  std::vector<std::string> ignored;
  CKPT_TRY_ASSIGN(const Messages there, read_messages(socket, kind, ignored));
  std::set<Octets> known;
  for (const NetworkMessage& one : wanted) known.insert(key_of(kind, one.message));
  for (const NetworkMessage& one : there) {
    if (known.count(key_of(kind, one.message)) != 0) continue;
    auto done = socket.ask(facts_of_kind(kind).remove, 0, one.message);
    const bool is_gone = !done && (done.error().sys_errno == ESRCH || done.error().sys_errno == ENOENT ||
                                   done.error().sys_errno == EADDRNOTAVAIL);
    if (done || is_gone) continue;
    done.error().subject = with_address(facts_of_kind(kind), one.message);
    return done;
  }
  return {};
}

}  // namespace ckpt::state
