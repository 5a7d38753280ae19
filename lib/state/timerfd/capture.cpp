#include <sys/timerfd.h>

#include <ctime>

#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::capture {

/// A periodic timer that has expired stands still until somebody reads it or asks for its time: only asking, which
/// changes nothing that the process can see, makes fdinfo tell how often and when next.
Result<void> take_timerfd(const Place& place, store::Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  itimerspec now{};
  if (::timerfd_gettime(theirs.get(), &now) != 0) return sys_error("timerfd", "cannot read its time left");
  CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(place.pid, place.fd));
  d.timerfd.clock = info.timer_clock, d.timerfd.settime_flags = info.timer_flags, d.timerfd.ticks = info.timer_ticks;
  d.timerfd.interval_ns = info.timer_interval_ns, d.timerfd.value_ns = info.timer_value_ns;
  // It may have expired again between the two looks; a disarmed one has no ticks.
  if (d.timerfd.value_ns == 0 && d.timerfd.ticks != 0) d.timerfd.value_ns = d.timerfd.interval_ns;
  if (d.timerfd.value_ns != 0 && d.timerfd.interval_ns == 0 && (d.timerfd.settime_flags & TFD_TIMER_ABSTIME) != 0) {
    timespec clock{};
    ::clock_gettime(d.timerfd.clock, &clock);
    d.timerfd.value_ns += static_cast<uint64_t>(clock.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(clock.tv_nsec);
  }
  return {};
}

}  // namespace ckpt::capture
