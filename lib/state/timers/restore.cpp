#include "lib/state/timers/restore.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "lib/base/clock.h"

namespace ckpt::restore {

namespace {

constexpr int kRestoreTimerIds = 77;  // PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15
/// Without that the ids come in order from 0: those before the wanted one are made and deleted, up to here.
constexpr int kMaxCountedTimer = 100'000;

bool can_choose_timer_ids() {
  constexpr int kGet = 2;
  return ::prctl(kRestoreTimerIds, kGet, 0, 0, 0) >= 0;
}

/// By id: /proc/PID/timers lists them in another order.
std::vector<store::PosixTimer> sorted_timers(const store::ProcessImage& image) {
  std::vector<store::PosixTimer> out = image.posix_timers;
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

void set_posix_timers(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch) {
  bool choose = can_choose_timer_ids();
  if (choose) batch.add("choose timer ids", SYS_prctl, kRestoreTimerIds, 1, 0, 0, 0);
  int next = 0;
  for (const auto& timer : sorted_timers(image)) {
    uint64_t id = area.put(timer.id);
    for (; !choose && next < timer.id; ++next) {
      batch.add("count up to a timer's id", SYS_timer_create, CLOCK_MONOTONIC, 0, id);
      batch.add("count up to a timer's id", SYS_timer_delete, next);
    }
    next = timer.id + 1;
    struct {  // struct sigevent of the kernel, 64 bytes
      uint64_t value;
      int32_t signo, notify, tid, pad[11];
    } event{timer.sigval, timer.signo, timer.notify, timer.tid, {}};
    static_assert(sizeof event == 64);
    batch.add("create a timer", SYS_timer_create, timer.clock, area.put(event), id);
    itimerspec setting{timespec_of(timer.interval_ns), timespec_of(timer.value_ns)};
    if (timer.value_ns != 0) batch.add("arm a timer", SYS_timer_settime, timer.id, 0, area.put(setting), 0);
  }
  if (choose) batch.add("choose timer ids no more", SYS_prctl, kRestoreTimerIds, 0, 0, 0, 0);
}

}  // namespace

void check_timers(const store::ProcessImage& image, Reasons& reasons) {
  if (can_choose_timer_ids()) return;
  for (const auto& timer : image.posix_timers) {
    if (timer.id <= kMaxCountedTimer) continue;
    reasons.add(Code::kUnsupported,
                fmt::format("timer {} cannot get its number back on this kernel (before 6.15)", timer.id));
  }
}

void set_timers(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch) {
  set_posix_timers(image, area, batch);
  for (const auto& timer : image.interval_timers) {
    constexpr uint64_t kMicro = 1'000'000;
    uint64_t left = timer.value_us;
    // A repeating timer without time left has expired, and its signal is queued: the kernel would start it again when
    // the process takes that, but setitimer with 0 stops it for good.
    if (timer.which == ITIMER_REAL && left == 0) left = timer.interval_us;
    uint64_t setting[4] = {timer.interval_us / kMicro, timer.interval_us % kMicro, left / kMicro, left % kMicro};
    batch.add("arm an interval timer", SYS_setitimer, timer.which, area.put(setting), 0);
  }
}

}  // namespace ckpt::restore
