#include "lib/base/fd_message.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

using namespace ckpt;

TEST_CASE(
    "messages with descriptors: bytes and descriptors arrive together, and what was not asked for is there to be "
    "closed") {
  int pair[2], pipe[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  REQUIRE(::pipe(pipe) == 0);
  UniqueFd ours(pair[0]), theirs(pair[1]), read_end(pipe[0]), write_end(pipe[1]);
  const std::string text = "two of them";
  const int fds[] = {read_end.get(), write_end.get()};
  CHECK(send_with_fds(ours.get(), std::as_bytes(std::span(text)), fds) == static_cast<ssize_t>(text.size()));
  CHECK(send_with_fds(ours.get(), std::as_bytes(std::span(text)), {}) == static_cast<ssize_t>(text.size()));
  std::string got(64, 0);
  std::vector<UniqueFd> received;
  REQUIRE(receive_with_fds(theirs.get(), std::as_writable_bytes(std::span(got)), received) ==
          static_cast<ssize_t>(text.size()));
  CHECK(got.substr(0, text.size()) == text);
  REQUIRE(received.size() == 2);
  REQUIRE(::write(received[1].get(), "x", 1) == 1);
  char byte = 0;
  CHECK(::read(received[0].get(), &byte, 1) == 1);
  CHECK(byte == 'x');
  REQUIRE(receive_with_fds(theirs.get(), std::as_writable_bytes(std::span(got)), received) ==
          static_cast<ssize_t>(text.size()));
  CHECK(received.empty());
  ours.reset();
  CHECK(receive_with_fds(theirs.get(), std::as_writable_bytes(std::span(got)), received) == 0);
}
