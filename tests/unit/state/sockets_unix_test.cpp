#include <poll.h>
#include <sys/wait.h>

#include <cstring>

#include "tests/support/skip.h"
#include "tests/unit/state/sockets_helpers.h"

using namespace ckpt;
using namespace ckpt::testing;
using store::SocketState;

namespace {

std::string name_of(int fd, int (*call)(int, sockaddr*, socklen_t*) = ::getsockname) {
  sockaddr_un name{};
  socklen_t size = sizeof name;
  if (call(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "errno " + std::to_string(errno);
  return size <= offsetof(sockaddr_un, sun_path)
             ? ""
             : std::string(name.sun_path, size - offsetof(sockaddr_un, sun_path) - (name.sun_path[0] != 0 ? 1 : 0));
}

std::string from_of(int fd) {
  sockaddr_un name{};
  char byte[64];
  socklen_t size = sizeof name;
  ssize_t got = ::recvfrom(fd, byte, sizeof byte, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&name), &size);
  if (got < 0) return "errno " + std::to_string(errno);
  std::string from = size <= offsetof(sockaddr_un, sun_path)
                         ? ""
                         : std::string(name.sun_path[0] != 0 ? name.sun_path : name.sun_path + 1);
  return std::string(byte, static_cast<size_t>(got)) + " from " + from;
}

ucred peer_of(int fd) {
  ucred out{};
  socklen_t size = sizeof out;
  REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &out, &size) == 0);
  return out;
}

void send_with(int fd, std::string_view text, std::vector<int> fds) {
  char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::copy(fds.begin(), fds.end(), reinterpret_cast<int*>(CMSG_DATA(head)));
  REQUIRE(::sendmsg(fd, &message, 0) == static_cast<ssize_t>(text.size()));
}

struct Received {
  std::string text;
  std::vector<UniqueFd> fds;
  ucred sender{};
  bool has_sender = false;
};
Received receive_all(int fd, size_t most) {
  Received out;
  alignas(cmsghdr) char control[512] = {};
  out.text.resize(most);
  iovec part{out.text.data(), most};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = control,
  message.msg_controllen = sizeof control;
  ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  out.text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_type == SCM_CREDENTIALS)
      out.has_sender = true, std::memcpy(&out.sender, CMSG_DATA(head), sizeof out.sender);
    if (head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i)
      out.fds.emplace_back(reinterpret_cast<int*>(CMSG_DATA(head))[i]);
  }
  return out;
}

/// The pid and what `run` does, in a child that has ended since.
template <class F>
int in_child(F run) {
  pid_t child = ::fork();
  if (child == 0) {
    run();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return child;
}

}  // namespace

TEST_CASE("sockets: a pair of stream sockets keeps what is in both queues, however long") {
  Tree tree(pair_of(SOCK_STREAM));
  std::string longer(150'000, 'x');
  for (size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<char>('a' + i * 7 % 26);
  REQUIRE(send_text(tree.fds[0], "hello "));
  REQUIRE(send_text(tree.fds[0], "world"));
  REQUIRE(send_text(tree.fds[1], longer));
  tree.round_trip();
  CHECK(receive(tree.fds[1]) == "hello world");
  std::string got;
  for (std::string part; got.size() < longer.size() && (part = receive(tree.fds[0])).rfind("errno", 0) != 0;)
    got += part;
  CHECK(got == longer);
  REQUIRE(send_text(tree.fds[1], "on"));
  CHECK(receive(tree.fds[0]) == "on");
}

TEST_CASE("sockets: borders of datagrams and records stay, empty ones count") {
  for (int type : {SOCK_DGRAM, SOCK_SEQPACKET}) {
    CAPTURE(type);
    Tree tree(pair_of(type));
    std::string large(100'000, 'l');
    for (std::string_view text : {"one", "", "three", large.c_str()}) REQUIRE(send_text(tree.fds[0], text));
    tree.capture();
    REQUIRE(tree.sockets[1].messages.size() == 4);
    auto done = tree.rebuild();
    REQUIRE(done);
    for (std::string_view text : {"one", "", "three", large.c_str()}) CHECK(receive(tree.fds[1]) == text);
    CHECK(receive(tree.fds[1]) == "errno 11");
    REQUIRE(send_text(tree.fds[1], "back"));
    CHECK(receive(tree.fds[0]) == "back");
  }
}

TEST_CASE("sockets: looking at a queue leaves the settings of the socket alone") {
  Tree tree(pair_of(SOCK_STREAM));
  REQUIRE(send_text(tree.fds[0], "text"));
  set(tree.fds[1], SOL_SOCKET, SO_PEEK_OFF, 2);
  tree.capture();
  CHECK(option(tree.fds[1], SOL_SOCKET, SO_PEEK_OFF) == 2);
  CHECK(option(tree.fds[1], SOL_SOCKET, SO_PASSCRED) == 0);
  CHECK(option(tree.fds[0], SOL_SOCKET, SO_PEEK_OFF) == -1);
  CHECK(receive(tree.fds[1], 10, MSG_PEEK) == "xt");
}

TEST_CASE("sockets: half and whole shutdown, and a peer that has been closed") {
  auto half = pair_of(SOCK_STREAM), closed = pair_of(SOCK_STREAM), reset = pair_of(SOCK_STREAM);
  REQUIRE(send_text(half[0], "last"));
  ::shutdown(half[0], SHUT_WR);
  REQUIRE(send_text(closed[0], "left"));
  ::close(closed[0]);
  REQUIRE(send_text(reset[1], "never read"));
  ::close(reset[0]);
  Tree tree({half[0], half[1], closed[1], reset[1]});
  tree.round_trip();
  CHECK(receive(tree.fds[1]) == "last");
  CHECK(receive(tree.fds[1]) == "");
  CHECK(!send_text(tree.fds[0], "x"));
  REQUIRE(send_text(tree.fds[1], "answer"));
  CHECK(receive(tree.fds[0]) == "answer");
  CHECK(receive(tree.fds[2]) == "left");
  CHECK(receive(tree.fds[2]) == "");
  CHECK(!send_text(tree.fds[2], "x"));
  CHECK(errno == EPIPE);
  CHECK(receive(tree.fds[3]) == "errno " + std::to_string(ECONNRESET));
  CHECK(receive(tree.fds[3]) == "");
}

TEST_CASE("sockets: a listening socket, its file, a connection it has accepted and one it has not") {
  Folder folder;
  std::string path = folder.path + "/listen";
  int listener = unix_socket(SOCK_STREAM, path);
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  REQUIRE(::listen(listener, 7) == 0);
  int client = unix_socket(SOCK_STREAM, "", path);
  int server = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  int waiting = unix_socket(SOCK_STREAM, "", path), second = unix_socket(SOCK_STREAM, "", path);
  REQUIRE(send_text(client, "request"));
  REQUIRE(send_text(server, "reply"));
  Tree tree({listener, client, server, waiting, second});
  tree.round_trip();
  CHECK(tree.sockets[0].backlog == 7);
  CHECK(tree.sockets[0].pending == std::vector<int>{3, 4});
  CHECK(name_of(tree.fds[0]) == path);
  CHECK(name_of(tree.fds[1], ::getpeername) == path);
  CHECK(name_of(tree.fds[2]) == path);
  CHECK(receive(tree.fds[2]) == "request");
  CHECK(receive(tree.fds[1]) == "reply");
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0640);
  REQUIRE(send_text(tree.fds[3], "late"));
  UniqueFd accepted(::accept4(tree.fds[0], nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(receive(accepted.get()) == "late");
  CHECK(tree.sockets[3].connector.pid == ::getpid());
  UniqueFd next(::accept4(tree.fds[0], nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(send_text(next.get(), "to the second"));
  CHECK(receive(tree.fds[4]) == "to the second");
  UniqueFd fresh(unix_socket(SOCK_STREAM, "", path));
  CHECK(fresh);
}

TEST_CASE("sockets: data for a connection that is not accepted yet, and one that was closed again, are obstacles") {
  Folder folder;
  int listener = unix_socket(SOCK_STREAM, folder.path + "/a");
  REQUIRE(::listen(listener, 7) == 0);
  int client = unix_socket(SOCK_STREAM, "", folder.path + "/a");
  REQUIRE(send_text(client, "early"));
  Tree tree({listener, client});
  tree.capture();
  REQUIRE(tree.blockers.size() == 1);
  CHECK(tree.blockers[0].text().find("has sent data") != std::string::npos);
  CHECK(tree.blockers[0].flag.empty());
}

TEST_CASE("sockets: abstract names, of a listening socket and of one that is gone") {
  std::string name = std::string("\0ckpt-test-", 11) + std::to_string(::getpid());
  int listener = unix_socket(SOCK_SEQPACKET, name);
  REQUIRE(::listen(listener, 3) == 0);
  int client = unix_socket(SOCK_SEQPACKET, "", name);
  int server = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  Tree tree({listener, client, server});
  tree.round_trip();
  CHECK(name_of(tree.fds[2]) == name);
  REQUIRE(send_text(tree.fds[1], "record"));
  CHECK(receive(tree.fds[2]) == "record");
  // The same without the listening socket.
  ::close(tree.made.fds[0].release());
  Tree rest({tree.made.fds[1].release(), tree.made.fds[2].release()});
  rest.round_trip();
  CHECK(name_of(rest.fds[1]) == name);
  CHECK(name_of(rest.fds[0], ::getpeername) == name);
}

TEST_CASE("sockets: a name that is relative, and one whose file was removed") {
  Folder folder;
  auto here = std::filesystem::current_path();
  std::filesystem::create_directory(folder.path + "/sub");
  std::filesystem::current_path(folder.path);
  int relative = unix_socket(SOCK_DGRAM, "sub/name");
  std::filesystem::current_path(here);
  int removed = unix_socket(SOCK_DGRAM, folder.path + "/removed");
  int sender = unix_socket(SOCK_DGRAM, "", folder.path + "/removed");
  std::filesystem::remove(folder.path + "/removed");
  Tree tree({relative, removed, sender});
  tree.round_trip();
  CHECK(name_of(tree.fds[0]) == "sub/name");
  CHECK(std::filesystem::is_socket(folder.path + "/sub/name"));
  CHECK(name_of(tree.fds[1]) == folder.path + "/removed");
  CHECK_FALSE(std::filesystem::exists(folder.path + "/removed"));
  REQUIRE(send_text(tree.fds[2], "still there"));
  CHECK(receive(tree.fds[1]) == "still there");
  UniqueFd outside(unix_socket(SOCK_DGRAM, "", folder.path + "/sub/name"));
  REQUIRE(send_text(outside.get(), "found"));
  CHECK(receive(tree.fds[0]) == "found");
}

TEST_CASE("sockets: datagrams keep their senders, be they of the tree, unnamed or gone") {
  Folder folder;
  int server = unix_socket(SOCK_DGRAM, folder.path + "/server");
  int client = unix_socket(SOCK_DGRAM, folder.path + "/client", folder.path + "/server");
  int unnamed = unix_socket(SOCK_DGRAM, "", folder.path + "/server");
  int gone = unix_socket(SOCK_DGRAM, folder.path + "/gone", folder.path + "/server");
  REQUIRE(send_text(client, "1"));
  REQUIRE(send_text(unnamed, "2"));
  REQUIRE(send_text(gone, "3"));
  ::close(gone);
  Tree tree({server, client, unnamed});
  tree.round_trip();
  CHECK(from_of(tree.fds[0]) == "1 from " + folder.path + "/client");
  CHECK(from_of(tree.fds[0]) == "2 from ");
  CHECK(from_of(tree.fds[0]) == "3 from " + folder.path + "/gone");
  REQUIRE(send_text(tree.fds[2], "4"));
  CHECK(from_of(tree.fds[0]) == "4 from ");
  CHECK(name_of(tree.fds[1], ::getpeername) == folder.path + "/server");
}

TEST_CASE("sockets: a datagram socket that is connected to one which is connected elsewhere, and to one that is gone") {
  Folder folder;
  int hub = unix_socket(SOCK_DGRAM, folder.path + "/hub");
  int early = unix_socket(SOCK_DGRAM, "", folder.path + "/hub");
  int other = unix_socket(SOCK_DGRAM, folder.path + "/other", folder.path + "/hub");
  socklen_t size = 0;
  auto name = unix_address(folder.path + "/other", size);
  REQUIRE(::connect(hub, reinterpret_cast<sockaddr*>(&name), size) == 0);
  int dead = unix_socket(SOCK_DGRAM, folder.path + "/dead");
  int widow = unix_socket(SOCK_DGRAM, "", folder.path + "/dead");
  ::close(dead);
  Tree tree({hub, early, other, widow});
  tree.round_trip();
  CHECK(name_of(tree.fds[1], ::getpeername) == folder.path + "/hub");
  CHECK(name_of(tree.fds[0], ::getpeername) == folder.path + "/other");
  REQUIRE(send_text(tree.fds[2], "allowed"));
  CHECK(receive(tree.fds[0]) == "allowed");
  CHECK(!send_text(tree.fds[1], "not any more"));
  CHECK(errno == EPERM);
  CHECK(name_of(tree.fds[3], ::getpeername) == folder.path + "/dead");
  CHECK(!send_text(tree.fds[3], "x"));
  CHECK(errno == ECONNREFUSED);
}

TEST_CASE("sockets: descriptors in flight arrive with the bytes that they were sent with, sockets among them") {
  Tree tree(pair_of(SOCK_STREAM));
  auto inner = pair_of(SOCK_STREAM);
  int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(send_text(tree.fds[0], "before"));
  send_with(tree.fds[0], "two", {file, inner[0]});
  send_with(tree.fds[0], "one", {file});
  REQUIRE(send_text(tree.fds[0], "after"));
  REQUIRE(send_text(inner[1], "inside"));
  ::close(file), ::close(inner[0]);
  tree.fds.push_back(inner[1]);
  tree.round_trip();
  REQUIRE(tree.sockets.size() == 4);
  CHECK(receive_all(tree.fds[1], 6).fds.empty());
  Received both = receive_all(tree.fds[1], 100);
  CHECK(both.text == "two");
  REQUIRE(both.fds.size() == 2);
  CHECK(receive(both.fds[1].get()) == "inside");
  Received one = receive_all(tree.fds[1], 100);
  CHECK(one.text == "one");
  CHECK(one.fds.size() == 1);
  CHECK(receive(tree.fds[1]) == "after");
}

TEST_CASE("sockets: the urgent byte of a unix stream keeps its place") {
  auto first = pair_of(SOCK_STREAM), middle = pair_of(SOCK_STREAM), last = pair_of(SOCK_STREAM);
  if (::send(first[0], "U", 1, MSG_OOB) != 1) {
    ckpt::test::skip("this kernel has no MSG_OOB for unix sockets");
    return;
  }
  REQUIRE(send_text(first[0], "behind"));
  REQUIRE(send_text(middle[0], "before"));
  REQUIRE(::send(middle[0], "V", 1, MSG_OOB) == 1);
  REQUIRE(send_text(middle[0], "behind"));
  REQUIRE(send_text(last[0], "before"));
  REQUIRE(::send(last[0], "W", 1, MSG_OOB) == 1);
  Tree tree({first[0], first[1], middle[0], middle[1], last[0], last[1]});
  tree.round_trip();
  CHECK(receive(tree.fds[1], 1, MSG_OOB) == "U");
  CHECK(receive(tree.fds[1]) == "behind");
  CHECK(receive(tree.fds[3]) == "before");
  CHECK(receive(tree.fds[3], 1, MSG_OOB) == "V");
  CHECK(receive(tree.fds[3]) == "behind");
  CHECK(receive(tree.fds[5]) == "before");
  CHECK(receive(tree.fds[5], 1, MSG_OOB) == "W");
}

TEST_CASE("sockets: peer credentials name the processes that made the connection, also when they are gone") {
  if (!may(kCheckpointRestore) || ::geteuid() != 0) return ckpt::test::skip("needs root");
  Folder folder;
  std::string path = folder.path + "/x";
  int pair[2], listener = unix_socket(SOCK_STREAM, path), client = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Made by others: descriptors come back through a pair of ours.
  auto way = pair_of(SOCK_STREAM);
  int maker = in_child([&] {
    (void)!::setgid(1234), (void)!::setuid(4321);
    int made[2];
    (void)!::socketpair(AF_UNIX, SOCK_STREAM, 0, made);
    send_with(way[0], "p", {made[0], made[1]});
  });
  Received got = receive_all(way[1], 1);
  REQUIRE(got.fds.size() == 2);
  pair[0] = got.fds[0].release(), pair[1] = got.fds[1].release();
  int server = in_child([&] { (void)!::listen(listener, 5); });
  ::chmod(folder.path.c_str(), 0777), ::chmod(path.c_str(), 0777);
  int caller = in_child([&] {
    (void)!::setgid(77), (void)!::setuid(99);
    socklen_t size = 0;
    auto name = unix_address(path, size);
    (void)!::connect(client, reinterpret_cast<sockaddr*>(&name), size);
  });
  int accepted = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  REQUIRE(accepted >= 0);
  ::close(way[0]), ::close(way[1]);
  Tree tree({pair[0], pair[1], listener, client, accepted});
  tree.round_trip();
  CHECK(tree.rebuild_notes.all == "");
  CHECK(peer_of(tree.fds[0]).pid == maker);
  CHECK(peer_of(tree.fds[1]).uid == 4321);
  CHECK(peer_of(tree.fds[1]).gid == 1234);
  CHECK(peer_of(tree.fds[2]).pid == server);
  CHECK(peer_of(tree.fds[3]).pid == server);
  CHECK(peer_of(tree.fds[4]).pid == caller);
  CHECK(peer_of(tree.fds[4]).uid == 99);
  CHECK(peer_of(tree.fds[4]).gid == 77);
}

TEST_CASE("sockets: messages keep the credentials of their senders") {
  if (!may(kCheckpointRestore) || ::geteuid() != 0) return ckpt::test::skip("needs root");
  for (int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
    CAPTURE(type);
    Tree tree(pair_of(type));
    set(tree.fds[1], SOL_SOCKET, SO_PASSCRED, 1);
    int other = in_child([&] {
      (void)!::setgid(5), (void)!::setuid(6);
      (void)!::send(tree.fds[0], "theirs", 6, 0);
    });
    REQUIRE(send_text(tree.fds[0], "ours"));
    tree.round_trip();
    Received first = receive_all(tree.fds[1], 100), second = receive_all(tree.fds[1], 100);
    CHECK(first.text == "theirs");
    CHECK(first.sender.pid == other);
    CHECK(first.sender.uid == 6);
    CHECK(first.sender.gid == 5);
    CHECK(second.text == "ours");
    CHECK(second.sender.pid == ::getpid());
  }
}

TEST_CASE("sockets: a peer outside is an obstacle that a flag takes away") {
  Folder folder;
  std::string path = folder.path + "/log";
  int outside = unix_socket(SOCK_DGRAM, path);
  Tree tree({unix_socket(SOCK_DGRAM, "", path)});
  tree.capture();
  REQUIRE(tree.blockers.size() == 1);
  CHECK(tree.blockers[0].flag == "--ext-unix-sk");
  CHECK(tree.blockers[0].what.find(path) != std::string::npos);
  Tree allowed({tree.fds[0]});
  tree.fds.clear();
  allowed.options.external_unix = true;
  allowed.round_trip();
  REQUIRE(send_text(allowed.fds[0], "again"));
  CHECK(receive(outside) == "again");
  ::close(outside);
}

TEST_CASE("sockets: a path that somebody else listens on is not taken away") {
  Folder folder;
  std::string path = folder.path + "/taken";
  Tree tree({unix_socket(SOCK_DGRAM, path)});
  tree.capture();
  std::filesystem::remove(path);
  int other = unix_socket(SOCK_DGRAM, path);
  auto done = tree.rebuild();
  REQUIRE_FALSE(done);
  CHECK(done.error().code == Code::kBusy);
  CHECK(done.error().text().find(path) != std::string::npos);
  ::close(other);
}

TEST_CASE("sockets: records that contradict themselves are refused") {
  Tree tree(pair_of(SOCK_STREAM));
  tree.capture();
  auto refused = [&](auto change) {
    auto records = tree.sockets;
    change(records);
    return !restore::check_sockets(records).empty();
  };
  CHECK_FALSE(refused([](auto&) {}));
  CHECK(refused([](auto& r) { r[0].peer = 7; }));
  CHECK(refused([](auto& r) { r[0].peer = 0; }));
  CHECK(refused([](auto& r) { r[0].content_size = 1; }));
  CHECK(refused([](auto& r) { r[0].pending = {1}; }));
  CHECK(refused([](auto& r) { r[1].type = SOCK_DGRAM; }));
  CHECK(refused([](auto& r) { r[0].error = ECONNREFUSED; }));  // of internet sockets alone
}
