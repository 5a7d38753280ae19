#include "lib/memory/tracking_daemon.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

using namespace ckpt;
using namespace ckpt::capture;

namespace {

/// What a process of its own finds: 'y', 'b' for busy, 'n'.
char ask_elsewhere(const ProcessKey& key) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto taken = CaptureLock::take(key);
    const char answer = taken ? 'y' : taken.error().code == Code::kBusy ? 'b' : 'n';
    (void)!::write(ends[1], &answer, 1);
    ::_exit(0);
  }
  char answer = '?';
  REQUIRE(::read(ends[0], &answer, 1) == 1);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]), ::close(ends[1]);
  return answer;
}

}  // namespace

TEST_CASE("capture lock: one process at a time, and what it has forked does not hold it any longer") {
  const ProcessKey key{::getpid(), 1};
  auto taken = CaptureLock::take(key);
  REQUIRE(taken);
  std::optional<CaptureLock> first(std::move(*taken));
  CHECK(ask_elsewhere(key) == 'b');
  CHECK(ask_elsewhere({::getppid(), 2}) == 'y');
  const pid_t forked = ::fork();  // has the descriptor, as a tracking daemon has that has not yet run
  if (forked == 0) {
    for (;;) ::pause();
  }
  first.reset();
  CHECK(ask_elsewhere(key) == 'y');
  ::kill(forked, SIGKILL);
  ::waitpid(forked, nullptr, 0);
}
