#include "lib/state/timerfd/restore.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>

#include <ctime>

#include "lib/base/clock.h"
#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

/// Disarmed.
Result<UniqueFd> make_timerfd(const store::Descriptor& descriptor) {
  return owned(::timerfd_create(descriptor.timerfd.clock, TFD_CLOEXEC), descriptor, "cannot make a timerfd");
}

Result<void> arm_timerfd(int fd, const store::Descriptor& descriptor, ProgressSink& progress) {
  constexpr unsigned long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS, with CONFIG_CHECKPOINT_RESTORE
  const store::Timerfd& timer = descriptor.timerfd;
  uint64_t value = timer.value_ns;
  const int flags = timer.settime_flags & (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
  if (value != 0 && timer.interval_ns != 0 && (flags & TFD_TIMER_ABSTIME) != 0) {
    timespec now{};
    ::clock_gettime(timer.clock, &now);
    value += static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }
  itimerspec setting{timespec_of(timer.interval_ns), timespec_of(value)};
  if (::timerfd_settime(fd, flags, &setting, nullptr) != 0)
    return sys_error(subject_of(descriptor), "cannot set the timerfd");
  uint64_t ticks = timer.ticks;
  if (ticks != 0 && ::ioctl(fd, kSetTicks, &ticks) != 0) {
    progress.note(
        fmt::format("{}: {} expirations that the process had not read yet are lost", subject_of(descriptor), ticks));
  }
  return {};
}

}  // namespace ckpt::restore
