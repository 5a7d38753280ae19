#include "lib/state/timers/capture.h"

#include <sys/syscall.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <span>

#include "lib/proc/procfs.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/timers/clock.h"

namespace ckpt::capture {

namespace {

uint64_t microseconds(const timeval& tv) {
  return static_cast<uint64_t>(tv.tv_sec) * 1'000'000 + static_cast<uint64_t>(tv.tv_usec);
}
uint64_t nanoseconds(const timespec& ts) {
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

}  // namespace

IntervalTimerQuestions::IntervalTimerQuestions(proc::CallList& calls) {
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    calls_.emplace_back(which, calls.add("read its interval timers", SYS_getitimer, {static_cast<uint64_t>(which), 0},
                                         sizeof(itimerval), proc::kSecond));
  }
}

Result<std::vector<store::IntervalTimer>> IntervalTimerQuestions::take(const proc::CallList& calls) const {
  std::vector<store::IntervalTimer> out;
  for (auto [which, call] : calls_) {
    CKPT_TRY_ASSIGN(itimerval value, calls.answer<itimerval>(call));
    // ITIMER_REAL reads as 0 from its expiry until its signal is taken; its interval shows that it goes on.
    bool expired = which == ITIMER_REAL && microseconds(value.it_interval) != 0;
    if (microseconds(value.it_value) == 0 && !expired) continue;
    out.push_back({which, microseconds(value.it_interval), microseconds(value.it_value)});
  }
  return out;
}

Result<std::vector<store::PosixTimer>> ask_posix_timers(proc::CallBatch& batch, proc::BatchedThread& leader,
                                                       const store::ProcessImage& image) {
  CKPT_TRY_ASSIGN(std::vector<proc::TimerLine> timers, proc::read_timers(image.pid));
  std::vector<store::PosixTimer> out;
  constexpr size_t kAtOnce = 128;
  for (size_t next = 0; next < timers.size(); next += kAtOnce) {
    const std::span<const proc::TimerLine> some =
        std::span(timers).subspan(next, std::min(kAtOnce, timers.size() - next));
    leader.calls = {};
    for (const proc::TimerLine& line : some) {
      leader.calls.add("read its POSIX timers", SYS_timer_gettime, {static_cast<uint64_t>(line.id), 0},
                       sizeof(itimerspec), proc::kSecond);
    }
    CKPT_TRY(batch.run({&leader, 1}));
    for (size_t i = 0; i < some.size(); ++i) {
      CKPT_TRY_ASSIGN(itimerspec value, leader.calls.answer<itimerspec>(i));
      const proc::TimerLine& line = some[i];
      store::PosixTimer timer;
      timer.id = line.id, timer.clock = line.clock, timer.notify = line.notify, timer.signo = line.signo;
      timer.tid = (line.notify & SIGEV_THREAD_ID) != 0 ? line.tid : 0;
      timer.sigval = line.sigval;
      timer.clock = store::lasting_clock(timer, state::own_number_of(image, timer.tid));
      timer.interval_ns = nanoseconds(value.it_interval), timer.value_ns = nanoseconds(value.it_value);
      out.push_back(timer);
    }
  }
  std::sort(out.begin(), out.end(), [](const store::PosixTimer& a, const store::PosixTimer& b) { return a.id < b.id; });
  return out;
}

}  // namespace ckpt::capture
