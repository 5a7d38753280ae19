#include <arpa/inet.h>
#include <doctest/doctest.h>

#include "lib/proc/socket_name.h"
#include "lib/state/sockets/map_addresses.h"

using namespace ckpt;
using namespace ckpt::restore;

namespace {

std::vector<uint8_t> four(const char* text, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET, name.sin_port = htons(static_cast<uint16_t>(port));
  REQUIRE(::inet_pton(AF_INET, text, &name.sin_addr) == 1);
  return proc::name_of(name);
}

std::vector<uint8_t> six(const char* text, int port) {
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6, name.sin6_port = htons(static_cast<uint16_t>(port)), name.sin6_scope_id = 3;
  REQUIRE(::inet_pton(AF_INET6, text, &name.sin6_addr) == 1);
  return proc::name_of(name);
}

std::vector<MappedAddress> mapped(std::initializer_list<const char*> texts) {
  std::vector<MappedAddress> out;
  for (const char* text : texts) {
    auto one = parse_mapped_address(text);
    REQUIRE_MESSAGE(one, text);
    out.push_back(*one);
  }
  return out;
}

store::Socket socket_of(int family, std::vector<uint8_t> name, std::vector<uint8_t> peer) {
  store::Socket out;
  out.family = family;
  out.name = std::move(name), out.peer_name = std::move(peer);
  return out;
}

}  // namespace

TEST_CASE("map-address: what is no pair of addresses is refused") {
  for (const char* bad :
       {"", "=", "1.2.3.4", "1.2.3.4=", "=1.2.3.4", "1.2.3.4=x", "host=1.2.3.4", "1.2.3.4=1.2.3.4=5.6.7.8",
        "1.2.3.4:80=1.2.3.5", "1.2.3.4=::1", "::1=1.2.3.4", "1.2.3=1.2.3.4"}) {
    const auto got = parse_mapped_address(bad);
    REQUIRE_MESSAGE(!got, bad);
    CHECK(got.error().code == Code::kUsage);
  }
}

TEST_CASE("map-address: names and peers of both families, ports kept") {
  const auto addresses = mapped({"10.1.1.1=127.0.0.1", "10.1.1.2=10.9.9.9", "fd00::1=::1", "fd00::2=fd00::9"});
  std::vector<store::Socket> sockets = {
      socket_of(AF_INET, four("10.1.1.1", 80), four("10.1.1.2", 90)),
      socket_of(AF_INET, four("0.0.0.0", 80), {}),
      socket_of(AF_INET6, six("fd00::1", 80), six("fd00::2", 90)),
      socket_of(AF_INET6, six("::ffff:10.1.1.1", 81), six("::ffff:10.1.1.2", 91)),
      socket_of(AF_INET, four("127.0.0.1", 7), four("10.1.1.3", 8)),
      socket_of(AF_UNIX, four("10.1.1.1", 80), four("10.1.1.2", 90)),
  };
  sockets[0].foreign_address = true;
  sockets[1].messages.resize(1);
  sockets[1].messages[0].from = four("10.1.1.2", 5), sockets[1].messages[0].to = four("10.1.1.1", 80);
  REQUIRE(map_addresses(addresses, sockets));
  CHECK(sockets[0].name == four("127.0.0.1", 80));
  CHECK(sockets[0].peer_name == four("10.9.9.9", 90));
  CHECK(!sockets[0].foreign_address);
  CHECK(sockets[1].name == four("0.0.0.0", 80));
  CHECK(sockets[1].messages[0].from == four("10.9.9.9", 5));
  CHECK(sockets[1].messages[0].to == four("127.0.0.1", 80));
  CHECK(sockets[2].name == six("::1", 80));
  CHECK(sockets[2].peer_name == six("fd00::9", 90));
  CHECK(sockets[3].name == six("::ffff:127.0.0.1", 81));
  CHECK(sockets[3].peer_name == six("::ffff:10.9.9.9", 91));
  CHECK(sockets[4].name == four("127.0.0.1", 7));
  CHECK(sockets[4].peer_name == four("10.1.1.3", 8));
  CHECK(sockets[5].name == four("10.1.1.1", 80));
}

TEST_CASE("map-address: one that this host does not have is refused by name, but not of a peer") {
  std::vector<store::Socket> sockets = {socket_of(AF_INET, four("127.0.0.1", 80), four("10.1.1.2", 90))};
  REQUIRE(map_addresses(mapped({"10.1.1.2=203.0.113.77"}), sockets));
  sockets = {socket_of(AF_INET, four("10.1.1.2", 80), {})};
  const auto refused = map_addresses(mapped({"10.1.1.2=203.0.113.77"}), sockets);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUsage);
  CHECK(refused.error().text().find("203.0.113.77") != std::string::npos);
}

TEST_CASE("map-address: names that are cut short are left alone") {
  std::vector<uint8_t> name = four("10.1.1.1", 80);
  for (size_t size = 0; size < name.size(); ++size) {
    std::vector<store::Socket> sockets = {
        socket_of(AF_INET, {name.begin(), name.begin() + static_cast<long>(size)}, {})};
    const auto before = sockets;
    CHECK(map_addresses(mapped({"10.1.1.1=127.0.0.1"}), sockets));
    CHECK(sockets[0].name == before[0].name);
  }
}
