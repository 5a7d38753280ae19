#include "lib/state/timers/restore.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/timers/clock.h"

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
    const int told = state::own_number_of(image, timer.tid);
    struct {  // struct sigevent of the kernel, 64 bytes
      uint64_t value;
      int32_t signo, notify, tid, pad[11];
    } event{timer.sigval, timer.signo, timer.notify, told, {}};
    static_assert(sizeof event == 64);
    batch.add("create a timer", SYS_timer_create, store::lasting_clock(timer, told), area.put(event), id);
    itimerspec setting{timespec_of(timer.interval_ns), timespec_of(timer.value_ns)};
    if (timer.value_ns != 0) batch.add("arm a timer", SYS_timer_settime, timer.id, 0, area.put(setting), 0);
  }
  if (choose)
    batch.add("choose timer ids no more", SYS_prctl, kRestoreTimerIds, image.restores_timer_ids ? 1 : 0, 0, 0, 0);
  else if (image.restores_timer_ids)
    batch.try_add("let it choose timer ids (PR_TIMER_CREATE_RESTORE_IDS)", SYS_prctl, kRestoreTimerIds, 1, 0, 0, 0);
}

}  // namespace

namespace {

/// Why a timer cannot be made again whatever the kernel is, or empty.
std::string obstacle(const store::PosixTimer& timer, const store::ProcessImage& image) {
  auto has_thread = [&](int tid) {
    return std::any_of(image.threads.begin(), image.threads.end(),
                       [&](const auto& thread) { return thread.tid == tid; });
  };
  if ((timer.notify & SIGEV_THREAD_ID) != 0 && !has_thread(timer.tid))
    return fmt::format("tells thread {}, which has ended", timer.tid);
  if (store::is_of_own_thread(timer) && image.threads.size() > 1 && (timer.notify & SIGEV_THREAD_ID) == 0)
    return "runs by the processor time of one thread, and nothing tells which";
  if (timer.clock >= 0) return "";
  // A clock has the number that the process itself gave.
  auto is_own = [&](int number) {
    return std::any_of(image.threads.begin(), image.threads.end(),
                       [&](const auto& thread) { return state::own_number(thread) == number; });
  };
  const int owner = static_cast<int>(~(static_cast<unsigned>(timer.clock) >> 3 | 7u << 29));
  const bool of_thread = (timer.clock & 4) != 0;
  if (owner == 0 || (of_thread ? is_own(owner) : owner == state::own_number(image))) return "";
  return fmt::format("runs by the processor time of {} {}, which {}", of_thread ? "thread" : "process", owner,
                     of_thread ? "has ended" : "is another one");
}

}  // namespace

void check_timers(const store::ProcessImage& image, Reasons& reasons) {
  for (const auto& timer : image.posix_timers) {
    if (const std::string why = obstacle(timer, image); !why.empty())
      reasons.add(Code::kUnsupported, fmt::format("process {}: timer {} {}", image.pid, timer.id, why));
  }
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

void tell_timer_ids(const store::ProcessImage& image, const SyscallBatch& batch, ProgressSink& progress) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const Call& call = batch.calls()[i];
    if (call.result < 0 && call.number == SYS_prctl && call.args[0] == kRestoreTimerIds)
      progress.note(fmt::format("process {}: {}", image.pid, batch.failure(i).text()));
  }
}

}  // namespace ckpt::restore
