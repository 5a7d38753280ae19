#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cstring>

#include "lib/proc/packet_filter.h"
#include "lib/proc/sock_diag.h"
#include "tests/support/skip.h"
#include "tests/unit/state/sockets_helpers.h"

using namespace ckpt;
using namespace ckpt::testing;
using store::SocketState;

namespace {

struct Connection {
  int listener = -1, client = -1, server = -1;
};

sockaddr_in6 name_of(int fd, int (*call)(int, sockaddr*, socklen_t*) = ::getsockname) {
  sockaddr_in6 out{};
  socklen_t size = sizeof out;
  REQUIRE(call(fd, reinterpret_cast<sockaddr*>(&out), &size) == 0);
  return out;
}
uint16_t port_of(int fd, int (*call)(int, sockaddr*, socklen_t*) = ::getsockname) {
  return ntohs(name_of(fd, call).sin6_port);
}

Connection connect_tcp(int family, int receive_buffer = 0) {
  Connection out;
  out.listener = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  out.client = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer != 0) set(out.listener, SOL_SOCKET, SO_RCVBUF, receive_buffer);
  sockaddr_in6 name{};
  socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof name;
  name.sin6_family = static_cast<sa_family_t>(family);
  if (family == AF_INET)
    reinterpret_cast<sockaddr_in&>(name).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    name.sin6_addr = in6addr_loopback;
  REQUIRE(::bind(out.listener, reinterpret_cast<sockaddr*>(&name), size) == 0);
  REQUIRE(::listen(out.listener, 5) == 0);
  name = name_of(out.listener);
  REQUIRE(::connect(out.client, reinterpret_cast<sockaddr*>(&name), size) == 0);
  out.server = ::accept4(out.listener, nullptr, nullptr, SOCK_CLOEXEC);
  REQUIRE(out.server >= 0);
  return out;
}

/// Receives until `size` bytes are there or nothing comes for a while.
std::string receive_slowly(int fd, size_t size, int wait_ms = 5000) {
  std::string out;
  while (out.size() < size) {
    pollfd poll{fd, POLLIN, 0};
    if (::poll(&poll, 1, wait_ms) != 1) break;
    std::string part = receive(fd);
    if (part.empty() || part.rfind("errno", 0) == 0) break;
    out += part;
  }
  return out;
}

std::string pattern(size_t size) {
  std::string out(size, 0);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<char>('A' + i * 31 % 47);
  return out;
}

/// FIN_WAIT1 counts as FIN_WAIT2: the other end may take its time to acknowledge.
int state_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return -1;
  return info.tcpi_state == 4 ? 5 : info.tcpi_state;
}

}  // namespace

TEST_CASE("sockets: TCP connections are obstacles without a flag") {
  Connection c = connect_tcp(AF_INET);
  Tree tree({c.listener, c.client, c.server});
  tree.capture();
  REQUIRE(tree.blockers.size() == 2);
  CHECK(tree.blockers[0].flag == "--tcp-established");
}

TEST_CASE("sockets: a TCP connection inside the tree goes on with what is in its queues") {
  if (!may(kNetAdmin)) return;
  for (int family : {AF_INET, AF_INET6}) {
    CAPTURE(family);
    Connection c = connect_tcp(family);
    set(c.client, IPPROTO_TCP, TCP_NODELAY, 1);
    std::string large = pattern(200'000);
    REQUIRE(send_text(c.client, "request"));
    REQUIRE(send_text(c.server, large));
    uint16_t port = port_of(c.client), server_port = port_of(c.listener);
    Tree tree({c.listener, c.client, c.server});
    tree.options.tcp_established = true;
    tree.capture();
    REQUIRE(tree.blockers.empty());
    CHECK(option(tree.fds[1], IPPROTO_TCP, TCP_REPAIR) == 0);
    CHECK(tree.sockets[2].tcp.receive_size == 7);
    auto done = tree.rebuild();
    if (!done) FAIL(done.error().text());
    CHECK(tree.rebuild_notes.all == "");
    CHECK(port_of(tree.fds[1]) == port);
    CHECK(port_of(tree.fds[1], ::getpeername) == server_port);
    CHECK(port_of(tree.fds[2], ::getpeername) == port);
    CHECK(option(tree.fds[1], IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(option(tree.fds[1], IPPROTO_TCP, TCP_REPAIR) == 0);
    CHECK(option(tree.fds[1], SOL_SOCKET, SO_REUSEADDR) == 0);
    CHECK(receive(tree.fds[2]) == "request");
    CHECK(receive_slowly(tree.fds[1], large.size()) == large);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(send_text(tree.fds[1], large));
      CHECK(receive_slowly(tree.fds[2], large.size()) == large);
      REQUIRE(send_text(tree.fds[2], "answer"));
      CHECK(receive_slowly(tree.fds[1], 6) == "answer");
    }
  }
}

TEST_CASE("sockets: a TCP connection whose receiver is full: what was never sent follows") {
  if (!may(kNetAdmin)) return;
  Connection c = connect_tcp(AF_INET, 8 * 1024);
  std::string all;
  for (int i = 0; i < 400; ++i) {
    std::string part = pattern(4096 + static_cast<size_t>(i));
    ssize_t sent = ::send(c.client, part.data(), part.size(), MSG_DONTWAIT);
    if (sent <= 0) break;
    all.append(part, 0, static_cast<size_t>(sent));
  }
  Tree tree({c.listener, c.client, c.server});
  tree.options.tcp_established = true;
  tree.capture();
  CHECK(tree.sockets[1].tcp.unsent_size > 0);
  auto done = tree.rebuild();
  if (!done) FAIL(done.error().text());
  CHECK(receive_slowly(tree.fds[2], all.size()) == all);
}

TEST_CASE("sockets: looking at a TCP connection does not disturb it") {
  if (!may(kNetAdmin)) return;
  Connection c = connect_tcp(AF_INET);
  set(c.client, SOL_SOCKET, SO_REUSEADDR, 1);
  REQUIRE(send_text(c.client, "waiting"));
  Tree tree({c.listener, c.client, c.server});
  tree.options.tcp_established = true;
  for (int i = 0; i < 5; ++i) tree.capture();
  CHECK(option(c.client, SOL_SOCKET, SO_REUSEADDR) == 1);
  {
    // A kill that did not happen.
    auto hold = capture::TcpHold::enter({c.client, c.server});
    REQUIRE(hold);
    CHECK(option(c.client, IPPROTO_TCP, TCP_REPAIR) == 1);
  }
  CHECK(option(c.client, IPPROTO_TCP, TCP_REPAIR) == 0);
  CHECK(option(c.client, SOL_SOCKET, SO_REUSEADDR) == 1);
  CHECK(receive(c.server) == "waiting");
  REQUIRE(send_text(c.server, pattern(100'000)));
  CHECK(receive_slowly(c.client, 100'000) == pattern(100'000));
}

/// False: TCP has none (before Linux 6.10).
bool has_peek_offset(int fd) {
  const int start = 0;
  return ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) == 0;
}

TEST_CASE("sockets: what a TCP connection has peeked at already stays so") {
  if (!may(kNetAdmin)) return;
  Connection live = connect_tcp(AF_INET), ended = connect_tcp(AF_INET6);
  if (!has_peek_offset(live.server) || !has_peek_offset(ended.server)) {
    test::skip("TCP has no peek offset here");
    return;
  }
  for (const Connection& c : {live, ended}) {
    REQUIRE(send_text(c.client, "looked at"));
    REQUIRE(receive(c.server, 3, MSG_PEEK) == "loo");
  }
  // Ended by both, with bytes that nobody has read.
  ::shutdown(ended.client, SHUT_WR), ::shutdown(ended.server, SHUT_WR);
  for (int i = 0; i < 1000 && state_of(ended.server) != 7; ++i) ::usleep(1000);
  Tree tree({live.listener, live.client, live.server, ended.listener, ended.client, ended.server});
  tree.options.tcp_established = true;
  tree.capture();
  REQUIRE(tree.blockers.empty());
  CHECK(tree.sockets[2].tcp.receive_size == 9);
  CHECK(tree.sockets[5].state == SocketState::kClosed);
  CHECK(tree.sockets[5].content_size == 9);
  for (const Connection& c : {live, ended}) {
    CHECK(option(c.server, SOL_SOCKET, SO_PEEK_OFF) == 3);
    CHECK(receive(c.server, 3, MSG_PEEK) == "ked");
    CHECK(receive(c.server) == "looked at");
  }
}

TEST_CASE("sockets: a TCP connection that was being made, and cannot be made again, is an error") {
  // Its listener has no room for a second one, and does not answer.
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET, name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* address = reinterpret_cast<sockaddr*>(&name);
  socklen_t size = sizeof name;
  REQUIRE(::bind(listener.get(), address, size) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  REQUIRE(::getsockname(listener.get(), address, &size) == 0);
  REQUIRE(::connect(first.get(), address, size) == 0);
  for (bool reachable : {true, false}) {
    CAPTURE(reachable);
    const int second = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    REQUIRE(::connect(second, address, size) == -1);
    Tree tree({second});
    tree.capture();
    REQUIRE(tree.blockers.empty());
    REQUIRE(tree.sockets[0].state == SocketState::kConnecting);
    sockaddr_in peer{};
    REQUIRE(tree.sockets[0].peer_name.size() == sizeof peer);
    std::memcpy(&peer, tree.sockets[0].peer_name.data(), sizeof peer);
    if (!reachable) peer.sin_addr.s_addr = htonl(INADDR_ALLHOSTS_GROUP);  // TCP connects to no group
    std::memcpy(tree.sockets[0].peer_name.data(), &peer, sizeof peer);
    const auto done = tree.rebuild();
    CHECK(static_cast<bool>(done) == reachable);
    if (!done) CHECK(done.error().text().find("cannot make its connection") != std::string::npos);
  }
}

TEST_CASE("sockets: TCP connections that one end or both have shut down") {
  if (!may(kNetAdmin)) return;
  Connection half = connect_tcp(AF_INET), outside = connect_tcp(AF_INET), both = connect_tcp(AF_INET6);
  REQUIRE(send_text(half.client, "last words"));
  ::shutdown(half.client, SHUT_WR);
  // The other end of this one has been closed: the connection lives on in the kernel alone.
  REQUIRE(send_text(outside.client, "farewell"));
  ::close(outside.client);
  ::shutdown(both.client, SHUT_WR);
  ::shutdown(both.server, SHUT_RD);
  for (int fd : {half.listener, outside.listener, both.listener}) ::close(fd);
  Tree tree({half.client, half.server, outside.server, both.client, both.server});
  tree.options.tcp_established = true;
  tree.capture();
  REQUIRE(tree.blockers.empty());
  std::vector<int> states;
  for (int fd : tree.fds) states.push_back(state_of(fd));
  auto done = tree.rebuild();
  if (!done) FAIL(done.error().text());
  CHECK(tree.rebuild_notes.all == "");
  for (size_t i = 0; i < states.size(); ++i) {
    CAPTURE(i);
    CHECK(state_of(tree.fds[i]) == states[i]);
  }
  CHECK(receive(tree.fds[1]) == "last words");
  CHECK(receive(tree.fds[1]) == "");
  CHECK(!send_text(tree.fds[0], "x"));
  REQUIRE(send_text(tree.fds[1], "answer"));
  CHECK(receive_slowly(tree.fds[0], 6) == "answer");
  CHECK(receive(tree.fds[2]) == "farewell");
  CHECK(receive(tree.fds[2]) == "");
  CHECK(receive(tree.fds[4]) == "");
}

TEST_CASE("sockets: a TCP peer outside is held off between dump and restore, and goes on afterwards") {
  if (!may(kNetAdmin)) return;
  if (auto probe = proc::probe_packet_filter(); !probe) {
    ckpt::test::skip(probe.error().text());
    return;
  }
  for (int family : {AF_INET, AF_INET6}) {
    CAPTURE(family);
    std::string id = "0test" + std::to_string(::getpid());
    Connection c = connect_tcp(family);
    Tree tree({c.listener, c.server});
    tree.options.tcp_established = true;
    tree.capture();
    auto filter = proc::PacketFilter::create(id, {{tree.sockets[1].name, tree.sockets[1].peer_name}});
    if (!filter) FAIL(filter.error().text());
    tree.capture();
    REQUIRE(filter->keep());
    { auto gone = std::move(*filter); }
    REQUIRE(tree.end_silently());
    // Nobody answers: with a filter it is as if the network were slow.
    REQUIRE(send_text(c.client, "meanwhile"));
    CHECK(receive_slowly(c.client, 1, 50) == "");
    CHECK(state_of(c.client) == 1);
    auto removed = proc::remove_packet_filter(id);
    REQUIRE(removed);
    CHECK(*removed);
    auto done = tree.rebuild();
    if (!done) FAIL(done.error().text());
    CHECK(receive_slowly(tree.fds[1], 9) == "meanwhile");
    REQUIRE(send_text(tree.fds[1], "back"));
    CHECK(receive_slowly(c.client, 4) == "back");
    removed = proc::remove_packet_filter(id);
    REQUIRE(removed);
    CHECK_FALSE(*removed);
    ::close(c.client);
    CHECK(receive_slowly(tree.fds[1], 1, 500) == "");
  }
}

TEST_CASE("sockets: a packet filter goes with its object") {
  if (!may(kNetAdmin) || !proc::probe_packet_filter()) return;
  Connection c = connect_tcp(AF_INET);
  Tree tree({c.listener, c.server, c.client});
  {
    tree.options.tcp_established = true;
    tree.capture();
    auto filter = proc::PacketFilter::create("0test" + std::to_string(::getpid()),
                                             {{tree.sockets[1].name, tree.sockets[1].peer_name}});
    REQUIRE(filter);
    REQUIRE(send_text(c.client, "held"));
    CHECK(receive_slowly(c.server, 4, 50) == "");
  }
  CHECK(receive_slowly(c.server, 4) == "held");
  CHECK_FALSE(proc::PacketFilter::create("a b; flush ruleset", {}));
}

TEST_CASE("sockets: --tcp-close ends connections and keeps what listens") {
  Connection c = connect_tcp(AF_INET);
  REQUIRE(send_text(c.client, "lost"));
  Tree tree({c.listener, c.client, c.server});
  tree.options.tcp_close = true;
  tree.capture();
  REQUIRE(tree.blockers.empty());
  uint16_t port = port_of(c.listener);
  auto done = tree.rebuild();
  if (!done) FAIL(done.error().text());
  CHECK(port_of(tree.fds[0]) == port);
  CHECK(receive(tree.fds[2]) == "");
  CHECK(!send_text(tree.fds[1], "x"));
  CHECK(errno == EPIPE);
}

TEST_CASE("sockets: connections that wait to be accepted by a TCP socket") {
  Connection c = connect_tcp(AF_INET);
  int waiting = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto name = name_of(c.listener);
  REQUIRE(::connect(waiting, reinterpret_cast<sockaddr*>(&name), sizeof(sockaddr_in)) == 0);
  ::close(c.client), ::close(c.server);
  Tree tree({c.listener});
  tree.options.tcp_established = true;
  tree.capture();
  REQUIRE(tree.blockers.size() == 1);
  CHECK(tree.blockers[0].flag == "--tcp-close");
  ::close(waiting);
}

TEST_CASE("sockets: a TCP socket that signs its segments is an obstacle, wherever it is in its life") {
  if (!may(kNetAdmin)) return;
  auto sign = [](int fd, const sockaddr_in6& peer) {
    tcp_md5sig key{};
    std::memcpy(&key.tcpm_addr, &peer, sizeof(sockaddr_in));
    key.tcpm_keylen = 3;
    std::memcpy(key.tcpm_key, "key", 3);
    return ::setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key) == 0;
  };
  auto obstacles = [](int fd) {
    Tree tree({fd});
    tree.options.tcp_established = true, tree.options.contents = false;
    tree.capture();
    tree.fds.clear();
    return tree.blockers.size() == 1 && tree.blockers[0].what.find("TCP_MD5SIG") != std::string::npos;
  };
  Connection plain = connect_tcp(AF_INET);
  CHECK_FALSE(obstacles(plain.listener));
  CHECK_FALSE(obstacles(plain.client));
  if (!sign(plain.listener, name_of(plain.listener))) {
    ckpt::test::skip("the kernel has no TCP signatures");
  } else {
    CHECK(obstacles(plain.listener));
    CHECK(sign(plain.client, name_of(plain.listener)));
    CHECK(obstacles(plain.client));
    for (int fd : {plain.listener, plain.client}) {  // bound to a network device
      CHECK(::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) == 0);
      CHECK(obstacles(fd));
    }
  }
  ::close(plain.client), ::close(plain.server), ::close(plain.listener);
}

TEST_CASE("sockets: a TCP socket with keys of TCP-AO is an obstacle, and one without is none") {
  struct Key {  // struct tcp_ao_add (Linux 6.7)
    sockaddr_storage address;
    char algorithm[64];
    int32_t interface;
    uint32_t current;
    uint16_t reserved;
    uint8_t prefix, send_id, receive_id, mac_length, flags, key_length;
    uint8_t key[80];
  } key{};
  constexpr int kTcpAoAddKey = 38;
  static_assert(sizeof(Key) == 128 + 64 + 8 + 8 + 80);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  CHECK_FALSE(proc::has_tcp_authentication(fd));
  auto& peer = reinterpret_cast<sockaddr_in&>(key.address);
  peer.sin_family = AF_INET, peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::strcpy(key.algorithm, "hmac(sha1)");
  key.prefix = 32, key.send_id = key.receive_id = 100, key.key_length = 3;
  std::memcpy(key.key, "key", 3);
  if (::setsockopt(fd, IPPROTO_TCP, kTcpAoAddKey, &key, sizeof key) != 0) {
    ckpt::test::skip("the kernel has no TCP-AO");
  } else {
    Tree tree({fd});
    tree.options.contents = false;
    tree.capture();
    tree.fds.clear();
    REQUIRE(tree.blockers.size() == 1);
    CHECK(tree.blockers[0].what.find("TCP-AO") != std::string::npos);
  }
  ::close(fd);
}
