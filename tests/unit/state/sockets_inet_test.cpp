#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cstring>

#include "tests/support/skip.h"
#include "tests/unit/state/sockets_helpers.h"

using namespace ckpt;
using namespace ckpt::testing;
using store::SocketState;

namespace {

sockaddr_storage loopback(int family, uint16_t port, socklen_t& size) {
  sockaddr_storage out{};
  if (family == AF_INET) {
    auto& in = reinterpret_cast<sockaddr_in&>(out);
    in.sin_family = AF_INET, in.sin_port = htons(port), in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    size = sizeof in;
  } else {
    auto& in = reinterpret_cast<sockaddr_in6&>(out);
    in.sin6_family = AF_INET6, in.sin6_port = htons(port), in.sin6_addr = in6addr_loopback;
    size = sizeof in;
  }
  return out;
}
uint16_t port_of(int fd, int (*call)(int, sockaddr*, socklen_t*) = ::getsockname) {
  sockaddr_in6 name{};
  socklen_t size = sizeof name;
  return call(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 ? ntohs(name.sin6_port) : 0;
}
int inet_socket(int family, int type, uint16_t port = 0) {
  int fd = ::socket(family, type | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  socklen_t size = 0;
  auto name = loopback(family, port, size);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0);
  return fd;
}
void connect_to(int fd, int family, uint16_t port) {
  socklen_t size = 0;
  auto name = loopback(family, port, size);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&name), size) == 0);
}

}  // namespace

TEST_CASE("sockets: UDP keeps addresses, peers and datagrams with their senders") {
  if (!may(kNetRaw)) return;
  for (int family : {AF_INET, AF_INET6}) {
    CAPTURE(family);
    int server = inet_socket(family, SOCK_DGRAM), client = inet_socket(family, SOCK_DGRAM);
    uint16_t port = port_of(server), client_port = port_of(client);
    connect_to(client, family, port);
    for (std::string_view text : {"one", "", "three"}) REQUIRE(send_text(client, text));
    REQUIRE(send_text(client, std::string(20'000, 'x')));
    Tree tree({server, client});
    tree.capture();
    REQUIRE(tree.blockers.empty());
    auto done = tree.rebuild();
    if (!done) FAIL(done.error().text());
    CHECK(tree.rebuild_notes.all == "");
    CHECK(port_of(tree.fds[0]) == port);
    CHECK(port_of(tree.fds[1], ::getpeername) == port);
    for (std::string_view text : {"one", "", "three"}) {
      char buffer[100];
      sockaddr_in6 from{};
      socklen_t size = sizeof from;
      ssize_t got =
          ::recvfrom(tree.fds[0], buffer, sizeof buffer, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &size);
      CHECK(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))) == text);
      CHECK(ntohs(from.sin6_port) == client_port);
    }
    CHECK(receive(tree.fds[0]) == std::string(20'000, 'x'));
    REQUIRE(send_text(tree.fds[1], "again"));
    CHECK(receive(tree.fds[0]) == "again");
  }
}

TEST_CASE("sockets: UDP datagrams from an address that is nobody's, for a port that several sockets share") {
  if (!may(kNetRaw)) return;
  int one = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), two = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  set(one, SOL_SOCKET, SO_REUSEPORT, 1), set(two, SOL_SOCKET, SO_REUSEPORT, 1);
  socklen_t size = 0;
  auto name = loopback(AF_INET, 0, size);
  REQUIRE(::bind(one, reinterpret_cast<sockaddr*>(&name), size) == 0);
  name = loopback(AF_INET, port_of(one), size);
  REQUIRE(::bind(two, reinterpret_cast<sockaddr*>(&name), size) == 0);
  int client = inet_socket(AF_INET, SOCK_DGRAM);
  connect_to(client, AF_INET, port_of(one));
  for (int i = 0; i < 4; ++i) REQUIRE(send_text(client, std::to_string(i)));
  Tree tree({one, two, client});
  tree.capture();
  for (auto& socket : tree.sockets) {
    for (auto& message : socket.messages) {
      const uint8_t address[] = {127, 9, 8, 7};
      std::copy_n(address, 4, message.from.begin() + 4);
    }
  }
  auto before = tree.sockets;
  auto done = tree.rebuild();
  if (!done) FAIL(done.error().text());
  tree.capture();
  CHECK((tree.sockets[0].messages == before[0].messages));
  CHECK((tree.sockets[1].messages == before[1].messages));
  CHECK(tree.sockets[0].messages.size() + tree.sockets[1].messages.size() == 4);
}

TEST_CASE("sockets: TCP listening, with its backlog and options, and a bound one") {
  for (int family : {AF_INET, AF_INET6}) {
    CAPTURE(family);
    int listener = inet_socket(family, SOCK_STREAM), bound = inet_socket(family, SOCK_STREAM);
    int fresh = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (family == AF_INET6) set(fresh, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
    set(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    REQUIRE(::listen(listener, 11) == 0);
    uint16_t port = port_of(listener), other = port_of(bound);
    Tree tree({listener, bound, fresh});
    tree.round_trip();
    CHECK(tree.sockets[0].backlog == 11);
    CHECK(port_of(tree.fds[0]) == port);
    CHECK(port_of(tree.fds[1]) == other);
    CHECK(port_of(tree.fds[2]) == 0);
    CHECK(option(tree.fds[0], SOL_SOCKET, SO_REUSEADDR) == 0);
    CHECK(option(tree.fds[0], IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(option(tree.fds[0], IPPROTO_TCP, TCP_DEFER_ACCEPT) > 0);
    UniqueFd client(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connect_to(client.get(), family, port);
    tree.capture();
    CHECK(tree.sockets[0].backlog == 11);
  }
}

TEST_CASE("sockets: options come back, the sizes of buffers and a filter among them") {
  int fd = inet_socket(AF_INET, SOCK_DGRAM);
  timeval wait{3, 500'000};
  linger linger{1, 9};
  set(fd, SOL_SOCKET, SO_RCVBUF, 50'000);
  set(fd, SOL_SOCKET, SO_BROADCAST, 1);
  set(fd, SOL_SOCKET, SO_PRIORITY, 3);
  set(fd, IPPROTO_IP, IP_TOS, 0x10);
  set(fd, IPPROTO_IP, IP_TTL, 33);
  set(fd, IPPROTO_IP, IP_PKTINFO, 1);
  set(fd, IPPROTO_IP, IP_RECVERR, 1);
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
  sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 0xffff}};
  sock_fprog program{1, code};
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
  REQUIRE(::fchown(fd, 12, 34) == 0);
  Tree tree({fd});
  tree.round_trip();
  auto before = tree.sockets[0];
  tree.capture();
  CHECK((tree.sockets[0].options == before.options));
  CHECK((tree.sockets[0].filter == before.filter));
  CHECK(tree.sockets[0].filter.size() == sizeof code);
  CHECK(tree.sockets[0].uid == 12);
  CHECK(option(tree.fds[0], SOL_SOCKET, SO_RCVBUF) == 100'000);
  CHECK(option(tree.fds[0], SOL_SOCKET, SO_BUF_LOCK) == 2);
  CHECK(option(tree.fds[0], IPPROTO_IP, IP_TTL) == 33);
}

TEST_CASE("sockets: netlink keeps port number and groups; unread messages are an obstacle") {
  int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK, name.nl_pid = 0x12345, name.nl_groups = RTMGRP_LINK;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  set(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_NEXTHOP);
  set(fd, SOL_NETLINK, NETLINK_EXT_ACK, 1);
  Tree tree({fd});
  tree.round_trip();
  CHECK(tree.sockets[0].groups == std::vector<uint32_t>{RTNLGRP_LINK, RTNLGRP_NEXTHOP});
  auto before = tree.sockets[0];
  tree.capture();
  CHECK((tree.sockets[0].name == before.name));
  CHECK((tree.sockets[0].groups == before.groups));
  CHECK(option(tree.fds[0], SOL_NETLINK, NETLINK_EXT_ACK) == 1);
  struct {
    nlmsghdr head;
    rtgenmsg body;
  } ask{};
  ask.head.nlmsg_len = sizeof ask, ask.head.nlmsg_type = RTM_GETLINK, ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  REQUIRE(::send(tree.fds[0], &ask, sizeof ask, 0) == sizeof ask);
  tree.capture();
  CHECK(tree.blockers.size() == 1);
}

TEST_CASE("sockets: multicast groups are joined again") {
  int four = inet_socket(AF_INET, SOCK_DGRAM), six = inet_socket(AF_INET6, SOCK_DGRAM);
  ip_mreqn request{};
  request.imr_multiaddr.s_addr = htonl(0xefff1234), request.imr_ifindex = 1;
  REQUIRE(::setsockopt(four, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) == 0);
  ipv6_mreq request6{};
  request6.ipv6mr_multiaddr.s6_addr[0] = 0xff, request6.ipv6mr_multiaddr.s6_addr[1] = 0x12;
  request6.ipv6mr_multiaddr.s6_addr[15] = 0x99, request6.ipv6mr_interface = 1;
  REQUIRE(::setsockopt(six, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request6, sizeof request6) == 0);
  Tree tree({four, six});
  tree.round_trip();
  auto before = tree.sockets;
  CHECK(before[0].memberships.size() == 1);
  CHECK(before[1].memberships.size() == 1);
  tree.capture();
  CHECK((tree.sockets[0].memberships == before[0].memberships));
  CHECK((tree.sockets[1].memberships == before[1].memberships));
  // A choice of sources is more than that.
  ip_mreq_source block{};
  block.imr_multiaddr = request.imr_multiaddr, block.imr_sourceaddr.s_addr = htonl(0x7f000009);
  block.imr_interface.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::setsockopt(tree.fds[0], IPPROTO_IP, IP_BLOCK_SOURCE, &block, sizeof block) == 0);
  tree.capture();
  CHECK(tree.blockers.size() == 1);
}

TEST_CASE("sockets: what is not supported is refused by name") {
  constexpr int kMptcp = 262;
  int multipath = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, kMptcp);
  if (multipath < 0) {
    ckpt::test::skip("no MPTCP here");
    return;
  }
  Tree tree({multipath});
  tree.capture();
  REQUIRE(tree.blockers.size() == 1);
  CHECK(tree.blockers[0].what.find("MPTCP") != std::string::npos);
}

TEST_CASE("sockets: raw and packet sockets") {
  if (!may(kNetRaw)) return;
  int raw = ::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, 253),
      packet = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(0x88b5));
  set(raw, IPPROTO_IP, IP_HDRINCL, 1);
  Tree tree({raw, packet});
  tree.round_trip();
  CHECK(option(tree.fds[0], IPPROTO_IP, IP_HDRINCL) == 1);
  CHECK(option(tree.fds[0], SOL_SOCKET, SO_PROTOCOL) == 253);
  CHECK(option(tree.fds[1], SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
  auto before = tree.sockets[1].name;
  tree.capture();
  CHECK(tree.sockets[1].name == before);
}
