// What an image may claim of a network namespace, and what is taken of what the kernel tells.
#include <doctest/doctest.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include "lib/state/network/content.h"
#include "lib/state/network/filters.h"
#include "lib/state/network/messages.h"
#include "lib/state/network/options.h"
#include "lib/state/network/settings.h"

namespace ckpt::state {
namespace {

using store::NetworkLink;

NetworkLink link(int index, const char* name, const char* kind, int lower = 0) {
  NetworkLink out;
  out.index = index, out.name = name, out.kind = kind, out.lower = lower;
  return out;
}

std::vector<NetworkLink> good_links() {
  return {link(1, "lo", ""), link(2, "br0", "bridge"), link(3, "left", "veth", 4), link(4, "right", "veth", 3),
          link(5, "eth0", "veth"), link(6, "mac0", "macvlan", 4)};
}

TEST_CASE("network: links that make sense") {
  std::vector<NetworkLink> links = good_links();
  links[2].master = 2;
  CHECK(validate_links(links).has_value());
  CHECK(leads_outside(links[4]));
  CHECK_FALSE(leads_outside(links[2]));
}

TEST_CASE("network: links that make none") {
  const std::vector<void (*)(std::vector<NetworkLink>&)> lies = {
      [](auto& all) { all[4].name = "a/b"; },
      [](auto& all) { all[4].name = ".."; },
      [](auto& all) { all[4].name = ""; },
      [](auto& all) { all[4].name = std::string("e\0h", 3); },
      [](auto& all) { all[4].name = "sixteen-letters-"; },
      [](auto& all) { all[4].name = "left"; },
      [](auto& all) { all[4].index = 4; },
      [](auto& all) { all[4].kind = "wireguard"; },
      [](auto& all) { all[4].kind = ""; },
      [](auto& all) { all[0].name = "l"; },
      [](auto& all) { all[4].alias = std::string(256, 'a'); },
      [](auto& all) { all[4].master = 3; },
      [](auto& all) { all[4].master = 77; },
      [](auto& all) { all[1].master = 2; },
      [](auto& all) { all[2].lower = 3; },
      [](auto& all) { all[2].lower = 5; },
      [](auto& all) { all[5].lower = 0; },
      [](auto& all) { all[5].lower = 6; },
      [](auto& all) { all[4].data = {4, 0, 1, 0}; },
      [](auto& all) { all[1].data = {4, 0, 1}; },
      [](auto& all) { all[1].data = {9, 0, 1, 0, 0}; },
      [](auto& all) { all[2].port = {3, 0, 1, 0}; },
      [](auto& all) { all[2].address.resize(33); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    std::vector<NetworkLink> links = good_links();
    lies[i](links);
    CAPTURE(i);
    CHECK_FALSE(validate_links(links).has_value());
  }
}

store::NetworkMessage address(uint16_t extra = 0) {
  ifaddrmsg head{};
  head.ifa_family = AF_INET, head.ifa_prefixlen = 24, head.ifa_index = 3;
  proc::RouteMessage out(head);
  out.add_value<uint32_t>(IFA_LOCAL, 0x0100000a);
  if (extra != 0) out.add_value<uint32_t>(extra, 1);
  return {out.octets()};
}

TEST_CASE("network: messages of an image") {
  CHECK(validate_messages({address()}, MessageKind::kAddress).has_value());
  // Of another namespace.
  CHECK_FALSE(validate_messages({address(IFA_TARGET_NETNSID)}, MessageKind::kAddress).has_value());
  for (size_t size = 0; size < address().message.size(); ++size) {
    store::NetworkMessage cut = address();
    cut.message.resize(size);
    const bool is_head_alone = size == sizeof(ifaddrmsg);
    CHECK(validate_messages({cut}, MessageKind::kAddress).has_value() == is_head_alone);
  }
  store::NetworkMessage other = address();
  other.message[0] = AF_BRIDGE;
  store::NetworkMessage large = address();
  large.message.resize(store::kMostOfMessage + 4);
  CHECK_FALSE(validate_messages({large}, MessageKind::kAddress).has_value());
  CHECK_FALSE(validate_messages({other}, MessageKind::kAddress).has_value());
}

TEST_CASE("network: next hops of an image") {
  rtmsg head{};
  head.rtm_family = AF_INET;
  rtnexthop hop{};
  hop.rtnh_len = sizeof hop, hop.rtnh_ifindex = 3;
  auto route = [&](const rtnexthop& one) {
    proc::RouteMessage out(head);
    out.add(RTA_MULTIPATH, {reinterpret_cast<const std::byte*>(&one), sizeof one});
    return store::NetworkMessage{out.octets()};
  };
  CHECK(validate_messages({route(hop)}, MessageKind::kRoute).has_value());
  for (const unsigned short length : {0, 7, 9, 65535}) {
    hop.rtnh_len = length;
    CAPTURE(length);
    CHECK_FALSE(validate_messages({route(hop)}, MessageKind::kRoute).has_value());
  }
}

constexpr const char* kTables =
    "table inet ckpt-12ab {\n\tchain in {\n\t}\n}\n"
    "# Warning: table ip filter is managed by iptables-nft, do not touch!\ntable ip filter {\n\tchain a {\n\t\taccept "
    "comment \"include \\\"this\\\"\"\n\t}\n}\n";

TEST_CASE("network: filters of an image") {
  CHECK(validate_filters("").has_value());
  CHECK(validate_filters(without_own_tables(kTables)).has_value());
  CHECK(without_own_tables(kTables).find("ckpt-") == std::string::npos);
  CHECK(without_own_tables(kTables).starts_with("# Warning"));
  for (const char* lie : {"include \"/etc/shadow\"\n", "table ip t {\n", "table ip t {\n\tinclude \"/x\"\n}\n",
                          "table ip t {\n\tchain c {\n\t\tcomment \"x\" ; include \"/x\" ; #\"\n\t}\n}\n",
                          "table ip t {\n\t# \"\n\tinclude \"/x\"\n\t# \"\n}\n",
                          "table ip t {\n}\nflush ruleset\ntable ip t {\n}\n", "flush ruleset\n}\n", "}\n"})
    CHECK_FALSE(validate_filters(lie).has_value());
  CHECK(validate_filters("table ip t {\n\tchain includes {\n\t}\n}\n").has_value());
}

TEST_CASE("network: settings of an image") {
  CHECK(validate_settings({{"net/ipv4/ip_forward", "1"}}).has_value());
  CHECK_FALSE(validate_settings({{"net/../kernel/core_pattern", "|/x"}}).has_value());
  CHECK_FALSE(validate_settings({{"kernel/core_pattern", "|/x"}}).has_value());
}

/// A link that a new namespace has not begins with the defaults.
TEST_CASE("network: settings of links") {
  const Settings fresh = {{"net/ipv4/conf/default/rp_filter", "0"},
                          {"net/ipv4/conf/all/rp_filter", "0"},
                          {"net/ipv4/neigh/lo/gc_stale_time", "60"}};
  Settings now = fresh;
  now["net/ipv4/conf/eth0.5/rp_filter"] = "0", now["net/ipv4/neigh/eth0.5/gc_stale_time"] = "7";
  auto made = settings_to_make(now, fresh);
  REQUIRE(made.size() == 1);
  CHECK(made[0].path == "net/ipv4/neigh/eth0.5/gc_stale_time");
  now["net/ipv4/conf/all/rp_filter"] = "1";  // which may change all others
  made = settings_to_make(now, fresh);
  REQUIRE(made.size() == 4);
  CHECK(made[0].path == "net/ipv4/conf/all/rp_filter");
}

TEST_CASE("network: ends outside") {
  const auto ends = parse_veths({"eth0=port0@br0", "eth1=port1"});
  REQUIRE(ends.has_value());
  CHECK(ends->at("eth0").name == "port0");
  CHECK(ends->at("eth0").bridge == "br0");
  CHECK(ends->at("eth1").name == "port1");
  CHECK(ends->at("eth1").bridge.empty());
  for (const char* bad : {"", "eth0", "eth0=", "=port0", "eth0=port0@", "eth0=@br0", "eth0=a/b", "et h0=a"})
    CHECK_FALSE(parse_veths({bad}).has_value());
  CHECK_FALSE(parse_veths({"eth0=a", "eth0=b"}).has_value());
}

}  // namespace
}  // namespace ckpt::state
