#include "lib/state/threads/stopped.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <optional>

#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"
#include "lib/state/memory_policies/capture.h"
#include "lib/state/signals/capture.h"

namespace ckpt::capture {

namespace {

using proc::CallList;
using proc::RemoteAddress;
using proc::kSecond;

constexpr long kErestartRestartblock = -516;
constexpr uint64_t kGetCpuid = 0x1011;  // ARCH_GET_CPUID
constexpr uint64_t kAskPersonality = 0xffffffff;
constexpr int64_t kRestricted = PR_SPEC_DISABLE | PR_SPEC_FORCE_DISABLE | PR_SPEC_DISABLE_NOEXEC;

store::Registers to_image(const user_regs_struct& regs) {
  store::Registers out;
  static_assert(sizeof regs == sizeof out.value);
  std::memcpy(out.value.data(), &regs, sizeof regs);
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
  if (!proc::read_memory(pid, RemoteAddress(regs.rsp),
                         MutableByteSpan(reinterpret_cast<std::byte*>(&caller), sizeof caller)) ||
      !proc::read_memory(pid, RemoteAddress(caller - call.size()), call)) {
    return regs.orig_rax;
  }
  return number_moved_before(call, 0xbf).value_or(regs.orig_rax);
}

/// A call interrupted with -ERESTART_RESTARTBLOCK: what a restore must do, since the time left is in the kernel's task.
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
  CKPT_TRY(proc::read_memory(pid, RemoteAddress(remainder),
                             MutableByteSpan(reinterpret_cast<std::byte*>(&left), sizeof left)));
  thread.restart = store::RestartKind::kSleepLeft;
  thread.sleep_left_ns = static_cast<uint64_t>(left.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(left.tv_nsec);
  return {};
}

}  // namespace

Result<void> take_registers(int pid, bool has_pending, proc::BatchedThread& batched, store::Thread& thread,
                            std::vector<std::byte>& xstate) {
  batched.tid = thread.tid, batched.xstate = &xstate;
  CKPT_TRY(proc::refuse_dispatched_calls(thread.tid));
  CKPT_TRY(proc::refuse_io_ports(thread.tid));
  CKPT_TRY_ASSIGN(batched.regs, proc::get_registers(thread.tid));
  if (batched.regs.cs == 0x23)
    return fail(Code::kUnsupported, "thread " + std::to_string(thread.tid), "runs 32-bit code, which is not supported");
  thread.regs = to_image(batched.regs);
  CKPT_TRY(plan_restart(pid, batched.regs, thread));
  CKPT_TRY_ASSIGN(xstate, proc::get_xstate(thread.tid));
  thread.xstate_size = xstate.size();
  CKPT_TRY_ASSIGN(batched.mask, proc::get_signal_mask(thread.tid));
  thread.signal_mask = batched.mask;
  if (has_pending) {
    CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(thread.tid, false));
    thread.pending = queued_signals(queue);
  }
  CKPT_TRY_ASSIGN(proc::RseqConfiguration rseq, proc::get_rseq(thread.tid));
  thread.rseq_address = rseq.address, thread.rseq_size = rseq.size, thread.rseq_signature = rseq.signature;
  uint64_t head = 0, length = 0;
  if (::syscall(SYS_get_robust_list, thread.tid, &head, &length) == 0)
    thread.robust_list = head, thread.robust_list_size = length;
  return {};
}

ThreadQuestions::ThreadQuestions(CallList& calls)
    : stack_(calls.add("read its alternate stack", SYS_sigaltstack, {0, 0}, sizeof(stack_t), kSecond)),
      clear_tid_(
          calls.add("read its clear_child_tid address", SYS_prctl, {PR_GET_TID_ADDRESS, 0}, sizeof(uint64_t), kSecond)),
      slack_(calls.add("read its timer slack", SYS_prctl, {PR_GET_TIMERSLACK})),
      securebits_(calls.add("read its securebits", SYS_prctl, {PR_GET_SECUREBITS})),
      death_signal_(
          calls.add("read its parent-death signal", SYS_prctl, {PR_GET_PDEATHSIG, 0}, sizeof(int), kSecond)),
      clock_reads_(calls.add("read its use of the time stamp", SYS_prctl, {PR_GET_TSC, 0}, sizeof(int), kSecond)),
      cpuid_(calls.add("read its use of cpuid", SYS_arch_prctl, {kGetCpuid, 0})),
      mce_kill_(calls.add("read what becomes of it with broken memory", SYS_prctl, {PR_MCE_KILL_GET})),
      policy_(ask_thread_policy(calls)),
      personality_(calls.add("read its personality", SYS_personality, {kAskPersonality})) {
  for (size_t i = 0; i < speculation_.size(); ++i)
    speculation_[i] = calls.add("read its speculation", SYS_prctl, {PR_GET_SPECULATION_CTRL, i});
}

Result<void> ThreadQuestions::take(const CallList& calls, store::Thread& thread) const {
  CKPT_TRY_ASSIGN(stack_t stack, calls.answer<stack_t>(stack_));
  thread.alt_stack_base = reinterpret_cast<uint64_t>(stack.ss_sp), thread.alt_stack_size = stack.ss_size;
  // SS_ONSTACK (1) says where the thread is, not how the stack was set.
  thread.alt_stack_flags = stack.ss_flags & ~SS_ONSTACK;
  CKPT_TRY_ASSIGN(thread.clear_child_tid, calls.answer<uint64_t>(clear_tid_));
  thread.timer_slack_ns = static_cast<uint64_t>(calls.result(slack_));
  CKPT_TRY_ASSIGN(thread.policy, thread_policy(calls, policy_));
  CKPT_TRY_ASSIGN(const uint64_t personality, calls.value(personality_));
  thread.personality = static_cast<int64_t>(personality);
  CKPT_TRY_ASSIGN(const uint64_t securebits, calls.value(securebits_));
  thread.securebits = static_cast<uint32_t>(securebits);
  CKPT_TRY_ASSIGN(thread.parent_death_signal, calls.answer<int>(death_signal_));
  if (calls.result(mce_kill_) >= 0) thread.mce_kill = static_cast<int>(calls.result(mce_kill_));
  for (size_t i = 0; i < speculation_.size(); ++i) {
    const int64_t found = calls.result(speculation_[i]);
    const bool chosen = found > 0 && (found & PR_SPEC_PRCTL) != 0 && (found & kRestricted) != 0;
    thread.speculation[i] = chosen ? static_cast<uint32_t>(found & kRestricted) : 0;
  }
  return refuse_trapped_instructions(calls, thread.tid);
}

/// rdtsc and cpuid that end in a signal, as record-and-replay debuggers have it.
Result<void> ThreadQuestions::refuse_trapped_instructions(const CallList& calls, int tid) const {
  const std::string subject = "thread " + std::to_string(tid);
  CKPT_TRY_ASSIGN(const int reads, calls.answer<int>(clock_reads_));
  if (calls.result(clock_reads_) == 0 && reads == PR_TSC_SIGSEGV)
    return fail(Code::kUnsupported, subject,
                "may not read the time stamp counter (PR_SET_TSC), which is not supported");
  if (calls.result(cpuid_) == 0)
    return fail(Code::kUnsupported, subject, "may not use cpuid (ARCH_SET_CPUID), which is not supported");
  return {};
}

}  // namespace ckpt::capture
