#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"
#include "plugins/cuda/agent_message.h"

using namespace ckpt;
using namespace ckpt::agent;

namespace {

struct Pair {
  UniqueFd ours, theirs;
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
};

/// A pipe whose other ends are counted by what its read end sees.
struct Watched {
  UniqueFd read, write;
  Watched() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  bool closed() {
    write.reset();
    pollfd what = {read.get(), POLLIN, 0};
    return ::poll(&what, 1, 0) == 1 && (what.revents & POLLHUP) != 0;
  }
};

void send_with(int socket, const std::string& bytes, const std::vector<int>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec io{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  REQUIRE(::sendmsg(socket, &header, 0) == static_cast<ssize_t>(bytes.size()));
}

std::string bytes_of(const Message& message) { return {reinterpret_cast<const char*>(&message), sizeof message}; }

}  // namespace

TEST_CASE("agent messages: what is sent arrives, with its payload and its descriptor") {
  Pair pair;
  Watched pipe;
  Message message;
  message.type = Type::kAttach;
  message.a = 7;
  const std::string payload(kMaxPayload, 'x');
  REQUIRE(send_message(pair.ours.get(), message, payload, pipe.write.get()) ==
          static_cast<ssize_t>(sizeof message + payload.size()));
  Received in;
  REQUIRE(receive_message(pair.theirs.get(), &in) > 0);
  CHECK(in.whole);
  CHECK(in.message.a == 7);
  CHECK(in.payload == payload);
  REQUIRE(in.fd >= 0);
  CHECK(!pipe.closed());
  ::close(in.fd);
  CHECK(pipe.closed());

  REQUIRE(send_message(pair.ours.get(), message, {}, -1) == sizeof message);
  REQUIRE(receive_message(pair.theirs.get(), &in) == sizeof message);
  CHECK(in.whole);
  CHECK(in.fd == -1);
  CHECK(in.payload.empty());
}

TEST_CASE("agent messages: descriptors that nobody asked for are closed") {
  for (size_t extra : {size_t{1}, size_t{2}, size_t{7}}) {
    CAPTURE(extra);
    Pair pair;
    Watched kept, rest;
    std::vector<int> fds = {kept.write.get()};
    for (size_t i = 0; i < extra; ++i) fds.push_back(rest.write.get());
    send_with(pair.ours.get(), bytes_of({}), fds);
    Received in;
    REQUIRE(receive_message(pair.theirs.get(), &in) > 0);
    const UniqueFd fd(in.fd);
    CHECK(fd);
    CHECK(rest.closed());
    CHECK(!kept.closed());
  }
}

TEST_CASE("agent messages: too short or too long is not whole; the end is told") {
  Pair pair;
  Received in;
  for (const size_t size : {size_t{1}, sizeof(Message) - 1, sizeof(Message) + kMaxPayload + 1}) {
    const std::string bytes(size, 'x');
    REQUIRE(::send(pair.ours.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(size));
    REQUIRE(receive_message(pair.theirs.get(), &in) > 0);
    CHECK(!in.whole);
    CHECK(in.payload.empty());
  }
  pair.ours.reset();
  CHECK(receive_message(pair.theirs.get(), &in) == 0);
  CHECK(!in.whole);
}
