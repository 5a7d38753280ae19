#include "lib/proc/fork_far_away.h"

#include <doctest/doctest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lib/base/io.h"
#include "lib/proc/host.h"

using namespace ckpt;

namespace {

constexpr int kSysAdmin = 21, kCheckpointRestore = 40, kRuns = 7;

int pid_max() { return std::atoi(io::read_file("/proc/sys/kernel/pid_max", 64).value().c_str()); }

/// The number of a child that knows it itself, ends as it should, and is reaped.
pid_t forked() {
  const pid_t child = proc::fork_far_away();
  if (child == 0) ::_exit(::getpid() == ::syscall(SYS_gettid) ? kRuns : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kRuns);
  return child;
}

}  // namespace

TEST_CASE("a process that stays has a number far from those that the kernel gives out now") {
  if (!proc::has_capability(kSysAdmin) && !proc::has_capability(kCheckpointRestore)) return;
  const pid_t usual = ::fork();
  if (usual == 0) ::_exit(0);
  REQUIRE(::waitpid(usual, nullptr, 0) == usual);
  const int away = std::abs(forked() - usual), range = pid_max();
  constexpr int kRoomForOthers = 4096;
  CHECK(std::min(away, range - away) > range / 2 - kRoomForOthers - 300);
}

TEST_CASE("without the right to choose its number it has some number") {
  const pid_t apart = ::fork();
  if (apart == 0) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (::syscall(SYS_capset, &header, none) != 0) ::_exit(2);
    const pid_t child = proc::fork_far_away();
    if (child == 0) ::_exit(kRuns);
    int status = 0;
    ::_exit(child > 0 && ::waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(apart, &status, 0) == apart);
  CHECK(WEXITSTATUS(status) == kRuns);
}
