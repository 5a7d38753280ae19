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
#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"

namespace ckpt::capture {

namespace {

using proc::BorrowedThread;
using proc::RemoteAddress;
using proc::raw;

constexpr long kErestartRestartblock = -516;

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

/// Everything that ptrace gives without running the thread. The answer: whether it is under seccomp.
Result<bool> take_registers(int pid, store::Thread& thread, std::vector<std::byte>& xstate) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(thread.tid));
  if (regs.cs == 0x23) return fail(Code::kUnsupported, "thread " + std::to_string(thread.tid), "runs 32-bit code, which is not supported");
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, thread.tid));
  thread.regs = to_image(regs);
  CKPT_TRY(plan_restart(pid, regs, thread));
  CKPT_TRY_ASSIGN(xstate, proc::get_xstate(thread.tid));
  thread.xstate_size = xstate.size();
  CKPT_TRY_ASSIGN(thread.signal_mask, proc::get_signal_mask(thread.tid));
  if (status.pending_private != 0) {
    CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(thread.tid, false));
    thread.pending = to_image(queue);
  }
  CKPT_TRY_ASSIGN(proc::RseqConfiguration rseq, proc::get_rseq(thread.tid));
  thread.rseq_address = rseq.address, thread.rseq_size = rseq.size, thread.rseq_signature = rseq.signature;
  uint64_t head = 0, length = 0;
  if (::syscall(SYS_get_robust_list, thread.tid, &head, &length) == 0) thread.robust_list = head, thread.robust_list_size = length;
  return status.seccomp != 0;
}

template <class T>
Result<T> fetch(BorrowedThread& thread) {
  T out{};
  CKPT_TRY(thread.get(MutableByteSpan(reinterpret_cast<std::byte*>(&out), sizeof out)));
  return out;
}

Result<void> ask_thread(BorrowedThread& borrowed, RemoteAddress buffer, store::Thread& thread) {
  CKPT_TRY(borrowed.call_ok("read its alternate stack", SYS_sigaltstack, {0, raw(buffer)}));
  CKPT_TRY_ASSIGN(stack_t stack, fetch<stack_t>(borrowed));
  thread.alt_stack_base = reinterpret_cast<uint64_t>(stack.ss_sp), thread.alt_stack_size = stack.ss_size;
  // SS_ONSTACK (1) says where the thread is, not how the stack was set.
  thread.alt_stack_flags = stack.ss_flags & ~SS_ONSTACK;
  CKPT_TRY(borrowed.call_ok("read its clear_child_tid address", SYS_prctl, {PR_GET_TID_ADDRESS, raw(buffer)}));
  CKPT_TRY_ASSIGN(thread.clear_child_tid, fetch<uint64_t>(borrowed));
  return {};
}

struct KernelSigaction {
  uint64_t handler, flags, restorer, mask;
};

Result<void> ask_signal_actions(BorrowedThread& borrowed, RemoteAddress buffer, store::ProcessImage& image) {
  // Caught and ignored ones are listed in status; SIGCHLD's flags matter even with the default action (SA_NOCLDWAIT).
  CKPT_TRY_ASSIGN(std::string status, proc::read_small(image.pid, "status"));
  auto mask_of = [&](const char* name) {
    size_t at = status.find(name);
    return at == std::string::npos ? ~0ull : std::strtoull(status.c_str() + at + std::strlen(name), nullptr, 16);
  };
  uint64_t wanted = mask_of("SigCgt:\t") | mask_of("SigIgn:\t") | uint64_t{1} << (SIGCHLD - 1);
  for (int signo = 1; signo <= 64; ++signo) {
    if ((wanted >> (signo - 1) & 1) == 0 || signo == SIGKILL || signo == SIGSTOP) continue;
    CKPT_TRY(borrowed.call_ok("read its signal handlers", SYS_rt_sigaction, {static_cast<uint64_t>(signo), 0, raw(buffer), 8}));
    CKPT_TRY_ASSIGN(KernelSigaction action, fetch<KernelSigaction>(borrowed));
    if (action.handler == 0 && action.flags == 0) continue;
    image.actions.push_back({signo, action.handler, action.flags, action.restorer, action.mask});
  }
  return {};
}

uint64_t microseconds(const timeval& tv) { return static_cast<uint64_t>(tv.tv_sec) * 1'000'000 + static_cast<uint64_t>(tv.tv_usec); }
uint64_t nanoseconds(const timespec& ts) { return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec); }

Result<void> ask_timers(BorrowedThread& borrowed, RemoteAddress buffer, store::ProcessImage& image) {
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    CKPT_TRY(borrowed.call_ok("read its interval timers", SYS_getitimer, {static_cast<uint64_t>(which), raw(buffer)}));
    CKPT_TRY_ASSIGN(itimerval value, fetch<itimerval>(borrowed));
    // ITIMER_REAL reads as 0 from its expiry until its signal is taken; its interval shows that it goes on.
    bool expired = which == ITIMER_REAL && microseconds(value.it_interval) != 0;
    if (microseconds(value.it_value) == 0 && !expired) continue;
    image.interval_timers.push_back({which, microseconds(value.it_interval), microseconds(value.it_value)});
  }
  CKPT_TRY_ASSIGN(std::vector<proc::TimerLine> timers, proc::read_timers(image.pid));
  for (const proc::TimerLine& line : timers) {
    CKPT_TRY(borrowed.call_ok("read its POSIX timers", SYS_timer_gettime, {static_cast<uint64_t>(line.id), raw(buffer)}));
    CKPT_TRY_ASSIGN(itimerspec value, fetch<itimerspec>(borrowed));
    store::PosixTimer timer;
    timer.id = line.id, timer.clock = line.clock, timer.notify = line.notify, timer.signo = line.signo;
    timer.tid = (line.notify & SIGEV_THREAD_ID) != 0 ? line.tid : 0;
    timer.sigval = line.sigval;
    timer.interval_ns = nanoseconds(value.it_interval), timer.value_ns = nanoseconds(value.it_value);
    image.posix_timers.push_back(timer);
  }
  std::sort(image.posix_timers.begin(), image.posix_timers.end(),
            [](const store::PosixTimer& a, const store::PosixTimer& b) { return a.id < b.id; });
  return {};
}

Result<void> ask_process(BorrowedThread& borrowed, RemoteAddress buffer, store::ProcessImage& image) {
  CKPT_TRY(ask_signal_actions(borrowed, buffer, image));
  CKPT_TRY(ask_timers(borrowed, buffer, image));
  CKPT_TRY_ASSIGN(image.bounds.brk, borrowed.call_ok("read its break", SYS_brk, {0}));
  CKPT_TRY_ASSIGN(uint64_t dumpable, borrowed.call_ok("read its dumpable flag", SYS_prctl, {PR_GET_DUMPABLE}));
  image.dumpable = static_cast<int>(dumpable);
  CKPT_TRY(borrowed.call_ok("read its parent-death signal", SYS_prctl, {PR_GET_PDEATHSIG, raw(buffer)}));
  CKPT_TRY_ASSIGN(image.parent_death_signal, fetch<int>(borrowed));
  CKPT_TRY(borrowed.call_ok("read its subreaper flag", SYS_prctl, {PR_GET_CHILD_SUBREAPER, raw(buffer)}));
  CKPT_TRY_ASSIGN(int subreaper, fetch<int>(borrowed));
  image.child_subreaper = subreaper != 0;
  CKPT_TRY_ASSIGN(uint64_t thp_disabled, borrowed.call_ok("read its huge page policy", SYS_prctl, {PR_GET_THP_DISABLE}));
  image.thp_disabled = thp_disabled != 0;
  CKPT_TRY_ASSIGN(uint64_t securebits, borrowed.call_ok("read its securebits", SYS_prctl, {PR_GET_SECUREBITS}));
  for (store::Thread& thread : image.threads) thread.securebits = static_cast<uint32_t>(securebits);
  return {};
}

}  // namespace

Result<void> ask_for_news(const proc::Scratch& scratch, int parent, store::ProcessImage& child) {
  CKPT_TRY_ASSIGN(BorrowedThread borrowed, BorrowedThread::begin(scratch, parent));
  siginfo_t info{};
  CKPT_TRY(borrowed.put(ByteSpan(reinterpret_cast<const std::byte*>(&info), sizeof info)));
  constexpr uint64_t kOptions = WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT | __WALL;
  CKPT_TRY_ASSIGN(int64_t found, borrowed.call(SYS_waitid, {P_PID, static_cast<uint64_t>(child.pid), raw(scratch.buffer()), kOptions, 0}));
  CKPT_TRY_ASSIGN(info, fetch<siginfo_t>(borrowed));
  CKPT_TRY(borrowed.finish());
  if (found != 0 || info.si_pid == 0) return {};
  child.news = info.si_code == CLD_CONTINUED ? store::News::kContinued : store::News::kStopped;
  return {};
}

Result<void> describe_inside(const proc::FrozenProcess& frozen, const proc::Scratch& scratch, bool placed,
                             store::ProcessImage& image, std::vector<std::vector<std::byte>>& xstates) {
  image.stopped = frozen.group_stopped();
  xstates.resize(image.threads.size());
  std::vector<int> tids;
  bool seccomp = false;
  for (size_t i = 0; i < image.threads.size(); ++i) {
    store::Thread& thread = image.threads[i];
    CKPT_TRY_ASSIGN(bool filtered, take_registers(image.pid, thread, xstates[i]));
    seccomp = seccomp || filtered;
    tids.push_back(thread.tid);
    CKPT_TRY_ASSIGN(BorrowedThread borrowed, BorrowedThread::begin(scratch, thread.tid));
    CKPT_TRY(ask_thread(borrowed, scratch.buffer(), thread));
    CKPT_TRY_ASSIGN(thread.policy, read_thread_policy(borrowed));
    if (thread.tid == image.pid && image.memory_of < 0 && placed) {
      CKPT_TRY_ASSIGN(image.policies, read_mapping_policies(borrowed, image.pid));
    }
    if (thread.tid == image.pid) CKPT_TRY(ask_process(borrowed, scratch.buffer(), image));
    CKPT_TRY(borrowed.finish());
  }
  if (seccomp) {
    CKPT_TRY_ASSIGN(image.seccomp, describe_seccomp(image.pid, tids));
  }
  CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(image.pid, true));
  image.pending = to_image(queue);
  return {};
}

}  // namespace ckpt::capture
