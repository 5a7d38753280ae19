// A round trip of sockets inside the test: captured from duplicates, closed, made again.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/proc/host.h"
#include "lib/state/sockets/capture.h"
#include "lib/state/sockets/restore.h"
#include "lib/state/sockets/tcp_repair.h"
#include "tests/support/notes.h"
#include "tests/support/skip.h"

namespace ckpt::testing {

inline bool may(int capability) {
  if (proc::has_capability(capability)) return true;
  ckpt::test::skip("a capability is missing");
  return false;
}
inline constexpr int kNetAdmin = 12, kNetRaw = 13, kSysChroot = 18, kCheckpointRestore = 40;

/// Sockets under test, by the order of `add`.
struct Tree {
  capture::SocketCaptureOptions options;
  std::vector<int> fds;             ///< of the test; after `rebuild` the new ones
  std::vector<std::string> others;  ///< what was in flight beside sockets: /proc/self/fd links
  std::vector<UniqueFd> other_fds;
  std::vector<store::Socket> sockets;
  std::vector<std::vector<std::byte>> contents;
  std::vector<capture::Blocker> blockers;
  std::vector<std::string> notes;
  test::Notes rebuild_notes;
  restore::Sockets made;

  Tree() = default;
  explicit Tree(std::vector<int> sockets_of_test) : fds(std::move(sockets_of_test)) {}
  ~Tree() {
    if (made.fds.empty()) {
      for (int fd : fds) ::close(fd);
    }
  }

  void capture() {
    capture::SocketCapture* self = nullptr;
    std::vector<uint64_t> inodes;
    other_fds.clear();
    auto inode_of = [](int fd) {
      struct stat st {};
      ::fstat(fd, &st);
      return st.st_ino;
    };
    capture::SocketCapture capture(options, [&](UniqueFd fd) -> Result<int> {
      uint64_t inode = inode_of(fd.get());
      struct stat st {};
      ::fstat(fd.get(), &st);
      if (!S_ISSOCK(st.st_mode)) {
        other_fds.push_back(std::move(fd));
        return 1000 + static_cast<int>(other_fds.size()) - 1;
      }
      for (size_t i = 0; i < inodes.size(); ++i) {
        if (inodes[i] == inode) return static_cast<int>(i);
      }
      inodes.push_back(inode);
      self->add({std::move(fd), static_cast<int>(inodes.size()) - 1, ::getpid(), "in flight"});
      return static_cast<int>(inodes.size()) - 1;
    });
    self = &capture;
    for (size_t i = 0; i < fds.size(); ++i) {
      inodes.push_back(inode_of(fds[i]));
      capture.add({UniqueFd(::fcntl(fds[i], F_DUPFD_CLOEXEC, 0)), static_cast<int>(i), ::getpid(),
                   "descriptor " + std::to_string(i)});
    }
    auto done = capture.run();
    if (!done) FAIL(done.error().text());
    sockets = capture.sockets, contents = capture.contents, blockers = capture.blockers, notes = capture.notes;
  }

  Result<void> rebuild() {
    if (!fds.empty() && !end_silently()) return Error(Code::kBug, "test", "cannot end the connections");
    for (size_t i = 0; i < sockets.size(); ++i) sockets[i].content_offset = i;
    restore::Reasons reasons;
    restore::SocketSources sources;
    sources.read_content = [&](const store::Socket& s) -> Result<std::vector<std::byte>> {
      return contents[s.content_offset];
    };
    sources.descriptor = [&](int index) {
      size_t at = static_cast<size_t>(index - 1000);
      return index >= 1000 && at < other_fds.size() ? other_fds[at].get() : -1;
    };
    made = restore::make_sockets(sockets, sources, reasons, rebuild_notes);
    for (const UniqueFd& fd : made.fds) fds.push_back(fd.get());
    CKPT_TRY(reasons.verdict("test"));
    return made.release(rebuild_notes);
  }

  /// What the end of the processes does: connections say nothing about it.
  bool end_silently() {
    std::vector<int> connections;
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i].tcp.state != 0 && sockets[i].state == store::SocketState::kConnected)
        connections.push_back(fds[i]);
    }
    auto hold = capture::TcpHold::enter(connections);
    if (!hold) return false;
    for (int fd : fds) ::close(fd);
    fds.clear();
    hold->keep();
    return true;
  }

  /// The whole way; fails the test when anything stands in it.
  void round_trip() {
    capture();
    for (const auto& blocker : blockers) FAIL_CHECK(blocker.text());
    auto first = sockets;
    auto first_contents = contents;
    capture();  // a second look sees the same: the first has changed nothing
    CHECK((sockets == first));
    CHECK((contents == first_contents));
    auto done = rebuild();
    if (!done) {
      std::string text = done.error().text();
      for (const auto& cause : done.error().causes) text += "\n" + cause;
      FAIL(text);
    }
  }
};

inline std::string receive(int fd, size_t most = 1 << 20, int flags = 0) {
  std::string out(most, 0);
  ssize_t got = ::recv(fd, out.data(), out.size(), flags | MSG_DONTWAIT);
  if (got < 0) return "errno " + std::to_string(errno);
  out.resize(static_cast<size_t>(got));
  return out;
}
inline bool send_text(int fd, std::string_view text, int flags = 0) {
  return ::send(fd, text.data(), text.size(), flags | MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
}
inline std::vector<int> pair_of(int type) {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) == 0);
  return {fds[0], fds[1]};
}
inline sockaddr_un unix_address(const std::string& name, socklen_t& size) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  name.copy(out.sun_path, sizeof out.sun_path);
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == 0 ? 0 : 1));
  return out;
}
inline int unix_socket(int type, const std::string& bound = "", const std::string& connected = "") {
  int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  socklen_t size = 0;
  if (!bound.empty()) {
    auto name = unix_address(bound, size);
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0);
  }
  if (!connected.empty()) {
    auto name = unix_address(connected, size);
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&name), size) == 0);
  }
  return fd;
}
inline int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}
inline void set(int fd, int level, int name, int value) {
  REQUIRE(::setsockopt(fd, level, name, &value, sizeof value) == 0);
}

struct Folder {
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-sockets-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace ckpt::testing
