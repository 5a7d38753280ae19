#include "lib/migrate/stall.h"

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

using namespace ckpt::migrate;

namespace {

pid_t start(const std::function<int()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(work());
}

int end_of(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status;
}

int wait_for_ever() {
  for (;;) ::pause();
}

constexpr int kGetsOn = 3, kStalled = 4;

/// Without privileges: how one that sleeps is judged. `dumpable`: whether others of its user may see what it does.
int judge(bool dumpable) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 1;
  const pid_t sleeper = start([&] {
    ::prctl(PR_SET_DUMPABLE, dumpable ? 1 : 0);
    return wait_for_ever();
  });
  ::usleep(100'000);
  StallWatch watch(sleeper, 200'000);
  bool stalled = false;
  for (int looks = 0; looks < 50 && !stalled; ++looks) {
    ::usleep(20'000);
    stalled = watch.stalled();
  }
  ::kill(sleeper, SIGKILL);
  return stalled ? kStalled : kGetsOn;
}

}  // namespace

TEST_CASE("stall: who does nothing has stalled, and who is not to be seen has not") {
  CHECK(WEXITSTATUS(end_of(start([] { return judge(true); }))) == kStalled);
  CHECK(WEXITSTATUS(end_of(start([] { return judge(false); }))) == kGetsOn);
}

TEST_CASE("stall: who could let them go is killed first, alone") {
  const pid_t root = start(wait_for_ever);
  const pid_t other = start(wait_for_ever);
  CHECK(kill_who_lets_go(root, {other}));  // whom nobody traces
  CHECK(WTERMSIG(end_of(root)) == SIGKILL);
  CHECK(::kill(other, 0) == 0);
  ::kill(other, SIGKILL);
  CHECK(WTERMSIG(end_of(other)) == SIGKILL);
}
