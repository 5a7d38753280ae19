#include "lib/proc/fork_far_away.h"

#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

/// -1 and errno: EEXIST where the number is taken, as it is too while it is that of a session or a group with members.
pid_t fork_as(pid_t number, clone_args args) {
  args.set_tid = reinterpret_cast<uint64_t>(&number), args.set_tid_size = 1;
  return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
}

constexpr pid_t kReserved = 300;  ///< the kernel's RESERVED_PIDS: not given out again once numbers begin anew

/// 0: not known.
pid_t far_from_last() {
  auto limit = io::read_file("/proc/sys/kernel/pid_max", 64), load = io::read_file("/proc/loadavg", 256);
  if (!limit || !load) return 0;
  const pid_t most = std::atoi(limit->c_str()), last = std::atoi(load->c_str() + load->rfind(' ') + 1);
  const pid_t range = most - kReserved;
  return range <= 0 || last <= 0 ? 0 : kReserved + (std::max(last - kReserved, 0) + range / 2) % range;
}

}  // namespace

pid_t fork_far_away(uint64_t flags, int exit_signal) {
  clone_args args{};
  args.flags = flags, args.exit_signal = static_cast<uint64_t>(exit_signal);
  constexpr int kLooked = 4096;  // a number that is taken costs a look; one that is taken meanwhile, a fork that fails
  constexpr int kTries = 8;
  int tries = 0;
  const pid_t start = far_from_last();
  for (pid_t number = start; number > kReserved && number > start - kLooked && tries < kTries; --number) {
    if (::kill(number, 0) == 0 || errno != ESRCH) continue;
    ++tries;
    const pid_t child = fork_as(number, args);
    if (child >= 0) return child;
    if (errno != EEXIST) break;
  }
  // Filters of containers refuse clone3, whose arguments they cannot see.
  return flags == 0 ? ::fork()
                    : static_cast<pid_t>(::syscall(SYS_clone, flags | static_cast<uint64_t>(exit_signal), nullptr,
                                                   nullptr, nullptr, nullptr));
}

}  // namespace ckpt::proc
