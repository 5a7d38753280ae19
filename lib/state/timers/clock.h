// Whose time a POSIX timer runs by.
#pragma once

#include <csignal>
#include <ctime>

#include "lib/state/timers/record.h"

namespace ckpt::store {

/// By the time of the thread that has made it: as /proc/PID/timers tells of such a timer, and as it was asked for.
inline bool is_of_own_thread(const PosixTimer& timer) {
  constexpr int kOwnThread = -2;
  return timer.clock == kOwnThread || timer.clock == CLOCK_THREAD_CPUTIME_ID;
}

/// The clock of a timer, whichever thread makes it: that of a thread as the kernel numbers those of others
/// (clock_getcpuclockid(3)). Who made a timer is not told, but whom it tells is: `told`, as the process numbers it.
inline int lasting_clock(const PosixTimer& timer, int told) {
  constexpr int kThreadClock = 6;  // CPUCLOCK_SCHED of one thread
  const bool of_thread = is_of_own_thread(timer) && (timer.notify & SIGEV_THREAD_ID) != 0;
  return of_thread ? static_cast<int>(~static_cast<unsigned>(told) << 3) | kThreadClock : timer.clock;
}

}  // namespace ckpt::store
