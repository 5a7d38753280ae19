#include "lib/state/sockets/option_guard.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

using namespace ckpt;
using namespace ckpt::capture;

namespace {

int peek_offset(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &value, &size) == 0 ? value : -2;
}
void set_peek_offset(int fd, int value) {
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &value, sizeof value) == 0);
}

struct GuardedPair {
  GuardedPair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0); }
  ~GuardedPair() { ::close(fds[0]), ::close(fds[1]); }
  int fds[2];
};

}  // namespace

TEST_CASE("option guard: puts back what a process that is killed has changed, and nothing else") {
  GuardedPair pair;
  set_peek_offset(pair.fds[0], 5);
  set_peek_offset(pair.fds[1], 6);
  pid_t child = ::fork();
  if (child == 0) {
    auto guard = OptionGuard::create(2);
    if (!guard) ::_exit(1);
    int changed = 0;
    guard->remember(pair.fds[0], SOL_SOCKET, SO_PEEK_OFF, 5);
    ::setsockopt(pair.fds[0], SOL_SOCKET, SO_PEEK_OFF, &changed, sizeof changed);
    size_t kept = guard->remember(pair.fds[1], SOL_SOCKET, SO_PEEK_OFF, 6);
    ::setsockopt(pair.fds[1], SOL_SOCKET, SO_PEEK_OFF, &changed, sizeof changed);
    guard->forget(kept);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  for (int i = 0; i < 2000 && peek_offset(pair.fds[0]) != 5; ++i) {
    timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
  CHECK(peek_offset(pair.fds[0]) == 5);
  CHECK(peek_offset(pair.fds[1]) == 0);
}

TEST_CASE("option guard: leaves no process and no descriptor behind") {
  int before = ::dup(0), pid = 0;
  ::close(before);
  {
    auto guard = OptionGuard::create(1);
    REQUIRE(guard);
    pid = guard->pid();
    CHECK(::kill(pid, 0) == 0);
  }
  CHECK(::kill(pid, 0) != 0);
  int after = ::dup(0);
  CHECK(after == before);
  ::close(after);
}
