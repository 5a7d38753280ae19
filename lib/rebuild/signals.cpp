#include "lib/rebuild/signals.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "lib/proc/ptrace.h"

namespace ckpt::rebuild {

namespace {

constexpr int kRestoreTimerIds = 77;  // PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15
constexpr int kSetSize = 8;           // the kernel's sigset_t
/// Without that the ids come in order from 0: those before the wanted one are made and deleted, up to here.
constexpr int kMaxCountedTimer = 100'000;

bool can_choose_timer_ids() {
  constexpr int kGet = 2;
  return ::prctl(kRestoreTimerIds, kGet, 0, 0, 0) >= 0;
}

/// struct kernel_sigaction of x86-64.
struct KernelAction {
  uint64_t handler = 0, flags = 0, restorer = 0, mask = 0;
};

KernelAction action_of(const store::SignalAction& action) {
  return {action.handler, action.flags, action.restorer, action.mask};
}

timespec timespec_of(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

uint64_t put_siginfo(const store::QueuedSignal& signal, Scratch& scratch) {
  return scratch.put_bytes({reinterpret_cast<const std::byte*>(signal.siginfo.data()), signal.siginfo.size()});
}

Call queue_call(int pid, int tid, bool shared, const store::QueuedSignal& signal, Scratch& scratch) {
  Call call;
  auto p = static_cast<uint64_t>(pid), t = static_cast<uint64_t>(tid), s = static_cast<uint64_t>(signal.signo),
       info = put_siginfo(signal, scratch);
  call.number = shared ? SYS_rt_sigqueueinfo : SYS_rt_tgsigqueueinfo;
  call.args[0] = p;
  call.args[1] = shared ? s : t;
  call.args[2] = shared ? info : s;
  call.args[3] = shared ? 0 : info;
  return call;
}

/// Calls `visit(tid, call)` for every queued signal; the shared ones belong to the leader. SIGSTOP cannot wait in a process that
/// runs: it is sent at the very end (Child::release comes after it).
template <class Visit>
void for_each_queued(const store::ProcessImage& image, Scratch& scratch, bool traps, Visit visit) {
  auto wanted = [&](const store::QueuedSignal& signal) { return signal.signo != SIGSTOP && (signal.signo == SIGTRAP) == traps; };
  for (size_t i = 0; i < image.threads.size(); ++i) {
    for (const auto& signal : image.threads[i].pending) {
      if (wanted(signal)) visit(i, queue_call(image.pid, image.threads[i].tid, false, signal, scratch));
    }
  }
  for (const auto& signal : image.pending) {
    if (wanted(signal)) visit(size_t{0}, queue_call(image.pid, image.pid, true, signal, scratch));
  }
}

/// By id: /proc/PID/timers lists them in another order.
std::vector<store::PosixTimer> sorted_timers(const store::ProcessImage& image) {
  std::vector<store::PosixTimer> out = image.posix_timers;
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

void set_posix_timers(const store::ProcessImage& image, Scratch& scratch, Script& script) {
  bool choose = can_choose_timer_ids();
  if (choose) script.add("choose timer ids", SYS_prctl, kRestoreTimerIds, 1, 0, 0, 0);
  int next = 0;
  for (const auto& timer : sorted_timers(image)) {
    uint64_t id = scratch.put(timer.id);
    for (; !choose && next < timer.id; ++next) {
      script.add("count up to a timer's id", SYS_timer_create, CLOCK_MONOTONIC, 0, id);
      script.add("count up to a timer's id", SYS_timer_delete, next);
    }
    next = timer.id + 1;
    struct {  // struct sigevent of the kernel, 64 bytes
      uint64_t value;
      int32_t signo, notify, tid, pad[11];
    } event{timer.sigval, timer.signo, timer.notify, timer.tid, {}};
    static_assert(sizeof event == 64);
    script.add("create a timer", SYS_timer_create, timer.clock, scratch.put(event), id);
    itimerspec setting{timespec_of(timer.interval_ns), timespec_of(timer.value_ns)};
    if (timer.value_ns != 0) script.add("arm a timer", SYS_timer_settime, timer.id, 0, scratch.put(setting), 0);
  }
  if (choose) script.add("choose timer ids no more", SYS_prctl, kRestoreTimerIds, 0, 0, 0, 0);
}

}  // namespace

bool has_waiting_stop(const store::ProcessImage& image) {
  auto stops = [](const std::vector<store::QueuedSignal>& queue) {
    return std::any_of(queue.begin(), queue.end(), [](const store::QueuedSignal& signal) { return signal.signo == SIGSTOP; });
  };
  return stops(image.pending) || std::any_of(image.threads.begin(), image.threads.end(), [&](const store::Thread& thread) { return stops(thread.pending); });
}

void check_timers(const store::ProcessImage& image, Reasons& reasons) {
  if (can_choose_timer_ids()) return;
  for (const auto& timer : image.posix_timers) {
    if (timer.id <= kMaxCountedTimer) continue;
    reasons.add(Code::kUnsupported,
                fmt::format("timer {} cannot get its number back on this kernel (before 6.15)", timer.id));
  }
}

void set_actions(const store::ProcessImage& image, Scratch& scratch, Script& script) {
  std::array<KernelAction, 65> actions{};
  for (const auto& action : image.actions) actions[static_cast<size_t>(action.signo)] = action_of(action);
  // Building has ended helpers and zombies of this process: setting an action that ignores them drops their signals.
  script.add("drop the signals of ended helpers", SYS_rt_sigaction, SIGCHLD, scratch.put(KernelAction()), 0, kSetSize);
  for (int signo = 1; signo <= 64; ++signo) {
    if (signo == SIGKILL || signo == SIGSTOP || signo == SIGTRAP) continue;
    script.add("set a signal's action", SYS_rt_sigaction, signo, scratch.put(actions[static_cast<size_t>(signo)]), 0,
               kSetSize);
  }
}

void queue_signals(const store::ProcessImage& image, Scratch& scratch, ThreadScripts& scripts) {
  for_each_queued(image, scratch, false, [&](size_t thread, const Call& call) {
    scripts[thread].add("queue a signal", call.number, call.args[0], call.args[1], call.args[2], call.args[3]);
  });
}

void set_timers(const store::ProcessImage& image, Scratch& scratch, Script& script) {
  set_posix_timers(image, scratch, script);
  for (const auto& timer : image.interval_timers) {
    constexpr uint64_t kMicro = 1'000'000;
    uint64_t left = timer.value_us;
    // A repeating timer without time left has expired, and its signal is queued: the kernel would start it again when
    // the process takes that, but setitimer with 0 stops it for good.
    if (timer.which == ITIMER_REAL && left == 0) left = timer.interval_us;
    uint64_t setting[4] = {timer.interval_us / kMicro, timer.interval_us % kMicro, left / kMicro, left % kMicro};
    script.add("arm an interval timer", SYS_setitimer, timer.which, scratch.put(setting), 0);
  }
}

Result<void> finish_trap_signal(const store::ProcessImage& image, Child& child) {
  auto call_in = [&](int tid, const Call& call) -> Result<void> {
    CKPT_TRY_ASSIGN(int64_t result, child.call_once(tid, child.scratch().syscall_instruction(), call));
    if (result < 0)
      return sys_error(static_cast<int>(-result), fmt::format("thread {}", tid), "cannot restore SIGTRAP");
    return {};
  };
  for (const auto& action : image.actions) {
    if (action.signo != SIGTRAP) continue;
    Call call{SYS_rt_sigaction, 0, {SIGTRAP, child.scratch().put(action_of(action)), 0, kSetSize}, 0};
    CKPT_TRY(call_in(image.pid, call));
  }
  Result<void> result;
  for_each_queued(image, child.scratch(), true, [&](size_t thread, const Call& call) {
    int tid = image.threads[thread].tid;
    if (result) result = proc::set_signal_mask(tid, ~uint64_t{0});
    if (result) result = call_in(tid, call);
  });
  return result;
}

}  // namespace ckpt::rebuild
