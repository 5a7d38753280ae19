#include "lib/state/signals/capture.h"

#include <sys/syscall.h>

#include <algorithm>
#include <csignal>
#include <cstring>

namespace ckpt::capture {

std::vector<store::QueuedSignal> queued_signals(const std::vector<std::array<uint8_t, 128>>& queue) {
  std::vector<store::QueuedSignal> out;
  for (const auto& info : queue) {
    int signo = 0;
    std::memcpy(&signo, info.data(), sizeof signo);
    out.push_back({signo, std::vector<uint8_t>(info.begin(), info.end())});
  }
  return out;
}

bool has_signal(const std::vector<store::QueuedSignal>& queue, int signo) {
  return std::any_of(queue.begin(), queue.end(),
                     [&](const store::QueuedSignal& signal) { return signal.signo == signo; });
}

namespace {

struct KernelSigaction {
  uint64_t handler, flags, restorer, mask;
};

}  // namespace

ActionQuestions::ActionQuestions(proc::CallList& calls, const proc::Status& status) {
  // Caught and ignored ones are listed in status; SIGCHLD's flags matter even with the default action (SA_NOCLDWAIT).
  const uint64_t wanted = status.caught | status.ignored | uint64_t{1} << (SIGCHLD - 1);
  for (int signo = 1; signo <= 64; ++signo) {
    if ((wanted >> (signo - 1) & 1) == 0 || signo == SIGKILL || signo == SIGSTOP) continue;
    calls_.emplace_back(signo,
                        calls.add("read its signal handlers", SYS_rt_sigaction, {static_cast<uint64_t>(signo), 0, 0, 8},
                                  sizeof(KernelSigaction), proc::kThird));
  }
}

Result<std::vector<store::SignalAction>> ActionQuestions::take(const proc::CallList& calls) const {
  std::vector<store::SignalAction> out;
  for (auto [signo, call] : calls_) {
    CKPT_TRY_ASSIGN(KernelSigaction action, calls.answer<KernelSigaction>(call));
    if (action.handler == 0 && action.flags == 0) continue;
    out.push_back({signo, action.handler, action.flags, action.restorer, action.mask});
  }
  return out;
}

}  // namespace ckpt::capture
