// Timerfds: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

struct Timerfd {
  int clock = 0;
  int settime_flags = 0;  ///< TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET
  uint64_t ticks = 0;     ///< expirations that nobody has read
  uint64_t interval_ns = 0;
  uint64_t value_ns =
      0;  ///< time left; of a single expiry at an absolute time (TFD_TIMER_ABSTIME): that time; 0: disarmed
  bool operator==(const Timerfd&) const = default;
};

/// Members of a descriptor.
template <class A>
void describe(A& a, typename A::template Of<Timerfd> t) {
  a.number("timerfd_clock", t.clock);
  a.number("timerfd_settime_flags", t.settime_flags);
  a.number("timerfd_ticks", t.ticks);
  a.number("timerfd_interval_ns", t.interval_ns);
  a.number("timerfd_value_ns", t.value_ns);
}

}  // namespace ckpt::store
