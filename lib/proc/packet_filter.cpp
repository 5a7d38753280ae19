#include "lib/proc/packet_filter.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lib/proc/nftables.h"

namespace ckpt::proc {

namespace {

/// The name becomes part of a command.
Result<void> check_id(const std::string& id) {
  bool plain = !id.empty() && id.size() <= 64 &&
               std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  return plain ? Result<void>() : Result<void>(Error(Code::kCorrupt, id, "is no identity of an image"));
}

std::string address_and_port(const SocketName& name, bool four) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (four) {
    auto in = address_of<sockaddr_in>(name);
    return fmt::format("{} . {}", ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size()), ntohs(in.sin_port));
  }
  auto in = address_of<sockaddr_in6>(name);
  return fmt::format("{} . {}", ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size()), ntohs(in.sin6_port));
}

/// Two sets of (remote, local), and a chain for each direction that drops what is in them.
std::string rules_for(const std::vector<FilteredConnection>& connections) {
  std::string elements[2];
  for (const auto& connection : connections) {
    SocketName local = plain_name(connection.local), remote = plain_name(connection.remote);
    bool four = address_of<sockaddr>(local).sa_family == AF_INET;
    std::string& list = elements[four ? 0 : 1];
    list += (list.empty() ? "" : ", ") + address_and_port(remote, four) + " . " + address_and_port(local, four);
  }
  std::string sets, in, out;
  for (int i : {0, 1}) {
    if (elements[i].empty()) continue;
    const char *ip = i == 0 ? "ip" : "ip6", *type = i == 0 ? "ipv4_addr" : "ipv6_addr", *set = i == 0 ? "four" : "six";
    sets += fmt::format("set {} {{ type {} . inet_service . {} . inet_service; elements = {{ {} }}; }}; ", set, type,
                        type, elements[i]);
    in += fmt::format("{0} saddr . tcp sport . {0} daddr . tcp dport @{1} drop; ", ip, set);
    out += fmt::format("{0} daddr . tcp dport . {0} saddr . tcp sport @{1} drop; ", ip, set);
  }
  return fmt::format(
      "{}chain in {{ type filter hook input priority -300; {}}}; "
      "chain out {{ type filter hook output priority -300; {}}}; ",
      sets, in, out);
}

Error refused(const std::string& what, const std::string& answer) {
  return Error(Code::kUnsupported, "nftables", fmt::format("{}: {}", what, answer));
}

}  // namespace

PacketFilter::PacketFilter(std::unique_ptr<Nftables> nftables, std::string id, std::string rules)
    : nftables_(std::move(nftables)), id_(std::move(id)), rules_(std::move(rules)) {}
PacketFilter::PacketFilter(PacketFilter&&) noexcept = default;
PacketFilter::~PacketFilter() = default;

Result<PacketFilter> PacketFilter::create(const std::string& id, const std::vector<FilteredConnection>& connections) {
  CKPT_TRY(check_id(id));
  CKPT_TRY_ASSIGN(auto nftables, Nftables::open());
  std::string rules = rules_for(connections);
  // Owned: it goes when the socket of this context is closed.
  auto answer = nftables->run(fmt::format("table inet ckpt-{}-dump {{ flags owner; {} }}", id, rules));
  if (answer) return refused("cannot hold off the packets of TCP connections", *answer);
  return PacketFilter(std::move(nftables), id, std::move(rules));
}

Result<void> PacketFilter::keep() {
  auto answer = nftables_->run(fmt::format("table inet ckpt-{} {{ {} }}", id_, rules_));
  if (answer) return refused("cannot hold off the packets of TCP connections", *answer);
  return {};
}

Result<bool> remove_packet_filter(const std::string& id) {
  CKPT_TRY(check_id(id));
  CKPT_TRY_ASSIGN(auto nftables, Nftables::open());
  if (nftables->run(fmt::format("list table inet ckpt-{}", id))) return false;
  auto answer = nftables->run(fmt::format("delete table inet ckpt-{}", id));
  if (answer) return refused("cannot remove the packet filter ckpt-" + id, *answer);
  return true;
}

Result<void> probe_packet_filter() {
  CKPT_TRY_ASSIGN(auto nftables, Nftables::open());
  auto answer = nftables->run("table inet ckpt-probe { flags owner; }");
  if (answer) return refused("cannot make a packet filter", *answer);
  return {};
}

}  // namespace ckpt::proc
