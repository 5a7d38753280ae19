#include "lib/state/signals/restore.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "lib/proc/ptrace.h"
#include "lib/state/namespaces/pids.h"

namespace ckpt::restore {

namespace {

constexpr int kSetSize = 8;  // the kernel's sigset_t
/// struct kernel_sigaction of x86-64.
struct KernelAction {
  uint64_t handler = 0, flags = 0, restorer = 0, mask = 0;
};

KernelAction action_of(const store::SignalAction& action) {
  return {action.handler, action.flags, action.restorer, action.mask};
}

uint64_t put_siginfo(const store::QueuedSignal& signal, RestorerArea& area) {
  return area.put_bytes({reinterpret_cast<const std::byte*>(signal.siginfo.data()), signal.siginfo.size()});
}

Call queue_call(int pid, int tid, bool shared, const store::QueuedSignal& signal, RestorerArea& area) {
  Call call;
  auto p = static_cast<uint64_t>(pid), t = static_cast<uint64_t>(tid), s = static_cast<uint64_t>(signal.signo),
       info = put_siginfo(signal, area);
  call.number = shared ? SYS_rt_sigqueueinfo : SYS_rt_tgsigqueueinfo;
  call.args[0] = p;
  call.args[1] = shared ? s : t;
  call.args[2] = shared ? info : s;
  call.args[3] = shared ? 0 : info;
  return call;
}

/// Calls `visit(tid, call)` for every queued signal; the shared ones belong to the leader. SIGSTOP cannot wait in a
/// process that runs: it is sent at the very end (Child::release comes after it).
template <class Visit>
void for_each_queued(const store::ProcessImage& image, RestorerArea& area, bool traps, Visit visit) {
  auto wanted = [&](const store::QueuedSignal& signal) {
    return signal.signo != SIGSTOP && (signal.signo == SIGTRAP) == traps;
  };
  const int own = state::own_number(image);
  for (size_t i = 0; i < image.threads.size(); ++i) {
    for (const auto& signal : image.threads[i].pending) {
      if (wanted(signal)) visit(i, queue_call(own, state::own_number(image.threads[i]), false, signal, area));
    }
  }
  for (const auto& signal : image.pending) {
    if (wanted(signal)) visit(size_t{0}, queue_call(own, own, true, signal, area));
  }
}

}  // namespace

bool has_waiting_stop(const store::ProcessImage& image) {
  auto stops = [](const std::vector<store::QueuedSignal>& queue) {
    return std::any_of(queue.begin(), queue.end(),
                       [](const store::QueuedSignal& signal) { return signal.signo == SIGSTOP; });
  };
  return stops(image.pending) || std::any_of(image.threads.begin(), image.threads.end(),
                                             [&](const store::Thread& thread) { return stops(thread.pending); });
}

void set_actions(const store::ProcessImage& image, RestorerArea& area, SyscallBatch& batch) {
  std::array<KernelAction, 65> actions{};
  for (const auto& action : image.actions) actions[static_cast<size_t>(action.signo)] = action_of(action);
  // Building has ended helpers and zombies of this process: setting an action that ignores them drops their signals.
  batch.add("drop the signals of ended helpers", SYS_rt_sigaction, SIGCHLD, area.put(KernelAction()), 0, kSetSize);
  for (int signo = 1; signo <= 64; ++signo) {
    if (signo == SIGKILL || signo == SIGSTOP || signo == SIGTRAP) continue;
    batch.add("set a signal's action", SYS_rt_sigaction, signo, area.put(actions[static_cast<size_t>(signo)]), 0,
              kSetSize);
  }
}

void queue_signals(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches) {
  for_each_queued(image, area, false, [&](size_t thread, const Call& call) {
    batches[thread].add("queue a signal", call.number, call.args[0], call.args[1], call.args[2], call.args[3]);
  });
}

Result<void> finish_trap_signal(const store::ProcessImage& image, Child& child) {
  auto call_in = [&](int tid, const Call& call) -> Result<void> {
    CKPT_TRY_ASSIGN(int64_t result, child.call_once(tid, child.area().syscall_instruction(), call));
    if (result < 0)
      return sys_error(static_cast<int>(-result), fmt::format("thread {}", tid), "cannot restore SIGTRAP");
    return {};
  };
  for (const auto& action : image.actions) {
    if (action.signo != SIGTRAP) continue;
    Call call{SYS_rt_sigaction, 0, {SIGTRAP, child.area().put(action_of(action)), 0, kSetSize}, 0};
    CKPT_TRY(call_in(image.pid, call));
  }
  Result<void> result;
  for_each_queued(image, child.area(), true, [&](size_t thread, const Call& call) {
    int tid = image.threads[thread].tid;
    if (result) result = proc::set_signal_mask(tid, ~uint64_t{0});
    if (result) result = call_in(tid, call);
  });
  return result;
}

}  // namespace ckpt::restore
