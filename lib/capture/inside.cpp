#include "lib/capture/inside.h"

#include <linux/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <optional>

#include "lib/capture/policies.h"
#include "lib/capture/seccomp.h"
#include "lib/proc/call_batch.h"
#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"
#include "lib/proc/seccomp.h"

namespace ckpt::capture {

namespace {

using proc::BorrowedThread;
using proc::CallList;
using proc::RemoteAddress;
using proc::raw;

constexpr long kErestartRestartblock = -516;
constexpr uint64_t kGetRegistrations = 1 << 9;  // MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3

store::Registers to_image(const user_regs_struct& regs) {
  store::Registers out;
  static_assert(sizeof regs == sizeof out.value);
  std::memcpy(out.value.data(), &regs, sizeof regs);
  return out;
}

std::vector<store::QueuedSignal> to_image(const std::vector<std::array<uint8_t, 128>>& queue) {
  std::vector<store::QueuedSignal> out;
  for (const auto& info : queue) {
    int signo = 0;
    std::memcpy(&signo, info.data(), sizeof signo);
    out.push_back({signo, std::vector<uint8_t>(info.begin(), info.end())});
  }
  return out;
}

bool has_signal(const std::vector<store::QueuedSignal>& queue, int signo) {
  return std::any_of(queue.begin(), queue.end(), [&](const store::QueuedSignal& signal) { return signal.signo == signo; });
}

/// The last `mov $n, %reg` in the code before `end` (`opcode`: 0xb8 eax, 0xbf edi) whose n is a call that restarts.
std::optional<uint64_t> number_moved_before(ByteSpan code, uint8_t opcode) {
  for (size_t at = code.size() - 5 + 1; at-- > 0;) {
    if (code[at] != std::byte{opcode}) continue;
    uint32_t number = 0;
    std::memcpy(&number, &code[at + 1], sizeof number);
    for (uint32_t known : {SYS_nanosleep, SYS_clock_nanosleep, SYS_poll, SYS_futex}) {
      if (number == known) return number;
    }
  }
  return std::nullopt;
}

/// The number of the call that a thread is in. A call that was stopped before runs as restart_syscall (219): then the
/// number is the immediate of the `mov $n, %eax` in front of its `syscall` instruction; or, where that is libc's
/// syscall(), which begins with `mov %rdi, %rax`, of the `mov $n, %edi` in front of the call of it. 219: not found.
uint64_t blocked_call(int pid, const user_regs_struct& regs) {
  if (regs.orig_rax != SYS_restart_syscall) return regs.orig_rax;
  std::array<std::byte, 32> code{};
  if (!proc::read_memory(pid, RemoteAddress(regs.rip - 2 - code.size()), code)) return regs.orig_rax;
  if (auto number = number_moved_before(code, 0xb8)) return *number;
  constexpr std::array<std::byte, 3> kMovRdiRax = {std::byte{0x48}, std::byte{0x89}, std::byte{0xf8}};
  if (std::search(code.begin(), code.end(), kMovRdiRax.begin(), kMovRdiRax.end()) == code.end()) return regs.orig_rax;
  uint64_t caller = 0;
  std::array<std::byte, 64> call{};
  if (!proc::read_memory(pid, RemoteAddress(regs.rsp), MutableByteSpan(reinterpret_cast<std::byte*>(&caller), sizeof caller)) ||
      !proc::read_memory(pid, RemoteAddress(caller - call.size()), call)) {
    return regs.orig_rax;
  }
  return number_moved_before(call, 0xbf).value_or(regs.orig_rax);
}

/// A call interrupted with -ERESTART_RESTARTBLOCK: what `rebuild` must do, since the time left is in the kernel's task.
Result<void> plan_restart(int pid, const user_regs_struct& regs, store::Thread& thread) {
  if (static_cast<long>(regs.rax) != kErestartRestartblock || static_cast<long>(regs.orig_rax) < 0) return {};
  uint64_t number = blocked_call(pid, regs);
  constexpr size_t kOrigRax = 15, kRax = 10;
  if (number == SYS_restart_syscall) {  // unknown: all that is left is to say that it was interrupted
    thread.regs.value[kRax] = static_cast<uint64_t>(-EINTR);
    thread.regs.value[kOrigRax] = ~0ull;
    return {};
  }
  thread.regs.value[kOrigRax] = number;
  thread.restart = store::RestartKind::kRepeat;
  uint64_t remainder = number == SYS_nanosleep ? regs.rsi : number == SYS_clock_nanosleep ? regs.r10 : 0;
  if (remainder == 0) return {};
  // do_nanosleep writes the time left before it asks to be restarted.
  timespec left{};
  CKPT_TRY(proc::read_memory(pid, RemoteAddress(remainder), MutableByteSpan(reinterpret_cast<std::byte*>(&left), sizeof left)));
  thread.restart = store::RestartKind::kSleepLeft;
  thread.sleep_left_ns = static_cast<uint64_t>(left.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(left.tv_nsec);
  return {};
}

/// Everything that ptrace gives without running the thread.
Result<void> take_registers(int pid, bool has_pending, proc::BatchedThread& batched, store::Thread& thread, std::vector<std::byte>& xstate) {
  batched.tid = thread.tid, batched.xstate = &xstate;
  CKPT_TRY_ASSIGN(batched.regs, proc::get_registers(thread.tid));
  if (batched.regs.cs == 0x23) return fail(Code::kUnsupported, "thread " + std::to_string(thread.tid), "runs 32-bit code, which is not supported");
  thread.regs = to_image(batched.regs);
  CKPT_TRY(plan_restart(pid, batched.regs, thread));
  CKPT_TRY_ASSIGN(xstate, proc::get_xstate(thread.tid));
  thread.xstate_size = xstate.size();
  CKPT_TRY_ASSIGN(batched.mask, proc::get_signal_mask(thread.tid));
  thread.signal_mask = batched.mask;
  if (has_pending) {
    CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(thread.tid, false));
    thread.pending = to_image(queue);
  }
  CKPT_TRY_ASSIGN(proc::RseqConfiguration rseq, proc::get_rseq(thread.tid));
  thread.rseq_address = rseq.address, thread.rseq_size = rseq.size, thread.rseq_signature = rseq.signature;
  uint64_t head = 0, length = 0;
  if (::syscall(SYS_get_robust_list, thread.tid, &head, &length) == 0) thread.robust_list = head, thread.robust_list_size = length;
  return {};
}

constexpr unsigned kFirst = 1, kSecond = 2, kThird = 4;  // the argument that is an address in a call's room

/// What every thread is asked. Each of these classes adds its calls when it is made, and reads the answers with `take`.
class ThreadQuestions {
 public:
  explicit ThreadQuestions(CallList& calls)
      : stack_(calls.add("read its alternate stack", SYS_sigaltstack, {0, 0}, sizeof(stack_t), kSecond)),
        clear_tid_(calls.add("read its clear_child_tid address", SYS_prctl, {PR_GET_TID_ADDRESS, 0}, sizeof(uint64_t), kSecond)),
        slack_(calls.add("read its timer slack", SYS_prctl, {PR_GET_TIMERSLACK})),
        policy_(ask_thread_policy(calls)) {}

  Result<void> take(const CallList& calls, store::Thread& thread) const {
    CKPT_TRY_ASSIGN(stack_t stack, calls.answer<stack_t>(stack_));
    thread.alt_stack_base = reinterpret_cast<uint64_t>(stack.ss_sp), thread.alt_stack_size = stack.ss_size;
    // SS_ONSTACK (1) says where the thread is, not how the stack was set.
    thread.alt_stack_flags = stack.ss_flags & ~SS_ONSTACK;
    CKPT_TRY_ASSIGN(thread.clear_child_tid, calls.answer<uint64_t>(clear_tid_));
    thread.timer_slack_ns = static_cast<uint64_t>(calls.result(slack_));
    CKPT_TRY_ASSIGN(thread.policy, thread_policy(calls, policy_));
    return {};
  }

 private:
  size_t stack_, clear_tid_, slack_, policy_;
};

struct KernelSigaction {
  uint64_t handler, flags, restorer, mask;
};

uint64_t microseconds(const timeval& tv) { return static_cast<uint64_t>(tv.tv_sec) * 1'000'000 + static_cast<uint64_t>(tv.tv_usec); }
uint64_t nanoseconds(const timespec& ts) { return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec); }

/// What the first thread is asked for its process.
class ProcessQuestions {
 public:
  ProcessQuestions(CallList& calls, const proc::Status& status, std::vector<int> children) : children_(std::move(children)) {
    // Caught and ignored ones are listed in status; SIGCHLD's flags matter even with the default action (SA_NOCLDWAIT).
    const uint64_t wanted = status.caught | status.ignored | uint64_t{1} << (SIGCHLD - 1);
    for (int signo = 1; signo <= 64; ++signo) {
      if ((wanted >> (signo - 1) & 1) == 0 || signo == SIGKILL || signo == SIGSTOP) continue;
      actions_.emplace_back(signo, calls.add("read its signal handlers", SYS_rt_sigaction, {static_cast<uint64_t>(signo), 0, 0, 8}, sizeof(KernelSigaction), kThird));
    }
    for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
      timers_.emplace_back(which, calls.add("read its interval timers", SYS_getitimer, {static_cast<uint64_t>(which), 0}, sizeof(itimerval), kSecond));
    }
    break_ = calls.add("read its break", SYS_brk, {0});
    dumpable_ = calls.add("read its dumpable flag", SYS_prctl, {PR_GET_DUMPABLE});
    death_signal_ = calls.add("read its parent-death signal", SYS_prctl, {PR_GET_PDEATHSIG, 0}, sizeof(int), kSecond);
    subreaper_ = calls.add("read its subreaper flag", SYS_prctl, {PR_GET_CHILD_SUBREAPER, 0}, sizeof(int), kSecond);
    thp_disabled_ = calls.add("read its huge page policy", SYS_prctl, {PR_GET_THP_DISABLE});
    securebits_ = calls.add("read its securebits", SYS_prctl, {PR_GET_SECUREBITS});
    membarrier_ = calls.add("read its membarrier registrations", SYS_membarrier, {kGetRegistrations, 0, 0});
    constexpr uint64_t kOptions = WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT | __WALL;
    for (int child : children_) {
      news_.push_back(calls.add("ask for its children", SYS_waitid, {P_PID, static_cast<uint64_t>(child), 0, kOptions, 0}, sizeof(siginfo_t), kThird));
    }
  }

  Result<void> take(const CallList& calls, store::ProcessImage& image) const {
    for (auto [signo, call] : actions_) {
      CKPT_TRY_ASSIGN(KernelSigaction action, calls.answer<KernelSigaction>(call));
      if (action.handler == 0 && action.flags == 0) continue;
      image.actions.push_back({signo, action.handler, action.flags, action.restorer, action.mask});
    }
    for (auto [which, call] : timers_) {
      CKPT_TRY_ASSIGN(itimerval value, calls.answer<itimerval>(call));
      // ITIMER_REAL reads as 0 from its expiry until its signal is taken; its interval shows that it goes on.
      bool expired = which == ITIMER_REAL && microseconds(value.it_interval) != 0;
      if (microseconds(value.it_value) == 0 && !expired) continue;
      image.interval_timers.push_back({which, microseconds(value.it_interval), microseconds(value.it_value)});
    }
    CKPT_TRY_ASSIGN(image.bounds.brk, calls.value(break_));
    CKPT_TRY_ASSIGN(uint64_t dumpable, calls.value(dumpable_));
    image.dumpable = static_cast<int>(dumpable);
    CKPT_TRY_ASSIGN(image.parent_death_signal, calls.answer<int>(death_signal_));
    CKPT_TRY_ASSIGN(int subreaper, calls.answer<int>(subreaper_));
    image.child_subreaper = subreaper != 0;
    CKPT_TRY_ASSIGN(uint64_t thp_disabled, calls.value(thp_disabled_));
    image.thp_disabled = thp_disabled != 0;
    CKPT_TRY_ASSIGN(uint64_t securebits, calls.value(securebits_));
    for (store::Thread& thread : image.threads) thread.securebits = static_cast<uint32_t>(securebits);
    if (const int64_t registered = calls.result(membarrier_); registered > 0 && image.memory_of < 0) image.membarrier = static_cast<uint32_t>(registered);
    return {};
  }

  /// What a child has for its parent to wait for; it is not taken.
  void take_news(const CallList& calls, store::TreeImage& tree) const {
    for (size_t i = 0; i < children_.size(); ++i) {
      const auto info = calls.written<siginfo_t>(news_[i]);
      if (calls.result(news_[i]) != 0 || info.si_pid == 0) continue;
      for (store::ProcessImage& child : tree.processes) {
        if (child.pid == children_[i]) child.news = info.si_code == CLD_CONTINUED ? store::News::kContinued : store::News::kStopped;
      }
    }
  }

 private:
  std::vector<int> children_;
  std::vector<std::pair<int, size_t>> actions_, timers_;
  size_t break_, dumpable_, death_signal_, subreaper_, thp_disabled_, securebits_, membarrier_;
  std::vector<size_t> news_;
};

/// A process may have thousands of them, so not all at once.
Result<void> ask_timers(proc::CallBatch& batch, proc::BatchedThread& leader, store::ProcessImage& image) {
  CKPT_TRY_ASSIGN(std::vector<proc::TimerLine> timers, proc::read_timers(image.pid));
  constexpr size_t kAtOnce = 128;
  for (size_t next = 0; next < timers.size(); next += kAtOnce) {
    const std::span<const proc::TimerLine> some = std::span(timers).subspan(next, std::min(kAtOnce, timers.size() - next));
    leader.calls = {};
    for (const proc::TimerLine& line : some) {
      leader.calls.add("read its POSIX timers", SYS_timer_gettime, {static_cast<uint64_t>(line.id), 0}, sizeof(itimerspec), kSecond);
    }
    CKPT_TRY(batch.run({&leader, 1}));
    for (size_t i = 0; i < some.size(); ++i) {
      CKPT_TRY_ASSIGN(itimerspec value, leader.calls.answer<itimerspec>(i));
      const proc::TimerLine& line = some[i];
      store::PosixTimer timer;
      timer.id = line.id, timer.clock = line.clock, timer.notify = line.notify, timer.signo = line.signo;
      timer.tid = (line.notify & SIGEV_THREAD_ID) != 0 ? line.tid : 0;
      timer.sigval = line.sigval;
      timer.interval_ns = nanoseconds(value.it_interval), timer.value_ns = nanoseconds(value.it_value);
      image.posix_timers.push_back(timer);
    }
  }
  std::sort(image.posix_timers.begin(), image.posix_timers.end(),
            [](const store::PosixTimer& a, const store::PosixTimer& b) { return a.id < b.id; });
  return {};
}

/// 0 where threads must be led by the hand: where a filter may refuse the call that stops them.
int signal_for_batch(const std::vector<proc::Status>& threads) {
  uint64_t pending = threads[0].pending_shared;
  bool filtered = false;
  for (const proc::Status& status : threads) {
    pending |= status.pending_private;
    filtered |= status.seccomp != 0;
  }
  if (filtered && proc::suspend_seccomp_option() == 0) return 0;
  return proc::CallBatch::choose_signal(threads[0].caught, threads[0].ignored, pending);
}

std::vector<int> children_of(const store::TreeImage& tree, int pid) {
  std::vector<int> out;
  for (const store::ProcessImage& process : tree.processes) {
    if (process.parent_pid == pid && !process.zombie) out.push_back(process.pid);
  }
  return out;
}

}  // namespace

Result<void> describe_inside(const proc::FrozenProcess& frozen, const proc::Scratch& scratch, const Inventory& found,
                             store::TreeImage& tree, size_t index, std::vector<std::vector<std::byte>>& xstates) {
  store::ProcessImage& image = tree.processes[index];
  const std::vector<proc::Status>& statuses = found.statuses[index];
  image.stopped = frozen.stopped_by() != 0;
  if (image.stopped) image.stop_signal = frozen.stopped_by();
  xstates.resize(image.threads.size());
  std::vector<proc::BatchedThread> threads(image.threads.size());
  std::vector<ThreadQuestions> asked;
  for (size_t i = 0; i < threads.size(); ++i) {
    CKPT_TRY(take_registers(image.pid, statuses[i].pending_private != 0, threads[i], image.threads[i], xstates[i]));
    asked.emplace_back(threads[i].calls);
  }
  ProcessQuestions of_process(threads[0].calls, statuses[0], children_of(tree, image.pid));
  proc::CallBatch batch(scratch, signal_for_batch(statuses));
  CKPT_TRY(batch.run(threads));
  for (size_t i = 0; i < threads.size(); ++i) CKPT_TRY(asked[i].take(threads[i].calls, image.threads[i]));
  CKPT_TRY(of_process.take(threads[0].calls, image));
  of_process.take_news(threads[0].calls, tree);
  CKPT_TRY(ask_timers(batch, threads[0], image));
  if (image.memory_of < 0 && found.placed[index]) {
    CKPT_TRY_ASSIGN(BorrowedThread leader, BorrowedThread::begin(scratch, image.pid));
    CKPT_TRY_ASSIGN(image.policies, read_mapping_policies(leader, image.pid));
    CKPT_TRY(leader.finish());
  }
  if (std::any_of(statuses.begin(), statuses.end(), [](const proc::Status& status) { return status.seccomp != 0; })) {
    std::vector<int> tids;
    for (const store::Thread& thread : image.threads) tids.push_back(thread.tid);
    CKPT_TRY_ASSIGN(image.seccomp, describe_seccomp(image.pid, tids));
  }
  CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(image.pid, true));
  image.pending = to_image(queue);
  // One that has come since the stop ended it: the kernel drops waiting SIGCONTs when a process is stopped.
  if (has_signal(image.pending, SIGCONT)) image.stopped = false;
  for (const store::Thread& thread : image.threads) {
    if (has_signal(thread.pending, SIGCONT)) image.stopped = false;
  }
  return {};
}

}  // namespace ckpt::capture
