// Interval timers and POSIX timers: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

/// setitimer values, microseconds; which: 0 REAL, 1 VIRTUAL, 2 PROF.
struct IntervalTimer {
  int which = 0;
  uint64_t interval_us = 0;
  uint64_t value_us = 0;  ///< time left at capture, 0: disarmed
  bool operator==(const IntervalTimer&) const = default;
};

/// timer_create timers: /proc/PID/timers and timer_gettime.
struct PosixTimer {
  int id = 0;
  int clock = 0;
  int notify = 0;         ///< sigev_notify: SIGEV_SIGNAL 0, SIGEV_NONE 1, SIGEV_THREAD 2, SIGEV_THREAD_ID 4
  int signo = 0;
  int tid = 0;            ///< for SIGEV_THREAD_ID
  uint64_t sigval = 0;
  uint64_t interval_ns = 0;
  uint64_t value_ns = 0;  ///< time left, 0: disarmed
  bool operator==(const PosixTimer&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<IntervalTimer> t) {
  a.number("which", t.which, 0, 2);
  a.number("interval_us", t.interval_us);
  a.number("value_us", t.value_us);
}

template <class A>
void describe(A& a, typename A::template Of<PosixTimer> t) {
  a.number("id", t.id, 0);
  a.number("clock", t.clock);
  a.number("notify", t.notify, 0);
  a.number("signo", t.signo, 0, 64);
  a.number("tid", t.tid, 0);
  a.hex("sigval", t.sigval);
  a.number("interval_ns", t.interval_ns);
  a.number("value_ns", t.value_ns);
}

}  // namespace ckpt::store
