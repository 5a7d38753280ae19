// A thread: registers, scheduling, credentials, and what it waits in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/cgroups/record.h"
#include "lib/state/labels/record.h"
#include "lib/state/memory_policies/record.h"
#include "lib/state/signals/record.h"

namespace ckpt::store {

/// struct user_regs_struct of <sys/user.h>, as PTRACE_GETREGSET NT_PRSTATUS gives it: 27 registers in that order.
/// A thread stopped in a system call has orig_rax >= 0 and rax = -ERESTART*; capture leaves that as it is, so that the
/// kernel itself decides on resume (`Thread::restart` says what the kernel can no longer know).
struct Registers {
  std::array<uint64_t, 27> value{};
  bool operator==(const Registers&) const = default;
};

/// Names in the order of `Registers::value`: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs
/// eflags rsp ss fs_base gs_base ds es fs gs.
extern const std::array<const char*, 27> kRegisterNames;

/// A system call that was interrupted with -ERESTART_RESTARTBLOCK (516) cannot be continued in another thread: the time
/// left lives in the old kernel task. What a restore does instead.
enum class RestartKind {
  kNone,       ///< the registers say all
  kRepeat,     ///< run the call again from the start, with its own arguments
  kSleepLeft,  ///< nanosleep / clock_nanosleep (relative): sleep `sleep_left_ns`, then return 0; remainder to its own
               ///< rem
};

struct Thread {
  int tid = 0;
  std::vector<int> inner_tids;        ///< its number in each further pid namespace that it is in, the outermost first
  std::string comm;
  Registers regs;
  uint64_t xstate_offset = 0;      ///< NT_X86_XSTATE area in the image's file "xstate"
  uint64_t xstate_size = 0;
  uint64_t signal_mask = 0;
  std::vector<QueuedSignal> pending;  ///< private to the thread
  uint64_t alt_stack_base = 0, alt_stack_size = 0;
  int alt_stack_flags = 0;            ///< SS_DISABLE 2, SS_AUTODISARM 1<<31
  uint64_t robust_list = 0, robust_list_size = 0;
  uint64_t rseq_address = 0;          ///< 0: not registered
  uint32_t rseq_size = 0, rseq_signature = 0;
  uint64_t clear_child_tid = 0;
  RestartKind restart = RestartKind::kNone;
  uint64_t sleep_left_ns = 0;
  // Scheduling (sched_getattr), affinity, and the rest a thread has of its own.
  uint32_t sched_policy = 0;
  uint64_t sched_flags = 0;
  int32_t nice = 0;
  uint32_t sched_priority = 0;
  uint64_t sched_runtime = 0, sched_deadline = 0, sched_period = 0;
  std::vector<uint8_t> affinity;      ///< bit mask as sched_getaffinity gives it
  int ioprio = 0;
  uint64_t timer_slack_ns = 0;        ///< 0: not known
  // Credentials are a thread's own on Linux.
  std::array<uint32_t, 4> uid{}, gid{};  ///< real, effective, saved, filesystem
  std::vector<uint32_t> groups;
  uint64_t cap_inheritable = 0, cap_permitted = 0, cap_effective = 0, cap_bounding = 0, cap_ambient = 0;
  uint32_t securebits = 0;
  int parent_death_signal = 0;
  /// What prctl(2) restricted by PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH and PR_SPEC_L1D_FLUSH; 0: nothing.
  std::array<uint32_t, 3> speculation{};
  bool no_new_privs = false;
  std::vector<Cgroup> cgroups;        ///< where they differ from the leader's; empty: the same
  MemoryPolicy policy;
  int util_min = -1, util_max = -1;   ///< how much of a processor it is taken to use, of 1024; -1: the kernel's choice
  int mce_kill = 2;                   ///< PR_MCE_KILL_GET: PR_MCE_KILL_LATE, _EARLY, _DEFAULT
  bool io_flusher = false;            ///< PR_SET_IO_FLUSHER
  std::vector<SecurityLabel> labels;
  int64_t personality = -1;           ///< personality(2); -1: that of the process
  bool operator==(const Thread&) const = default;
};

inline constexpr std::array<const char*, 3> kRestartNames = {"none", "repeat", "sleep-left"};

template <class A>
void describe(A& a, typename A::template Of<Registers> r) {
  for (size_t i = 0; i < r.value.size(); ++i) a.hex(kRegisterNames[i], r.value[i]);
}

template <class A>
void describe(A& a, typename A::template Of<Thread> t) {
  a.number("tid", t.tid, 1);
  a.optional().numbers("inner_tids", t.inner_tids);
  a.text("comm", t.comm);
  a.object("regs", t.regs);
  a.number("xstate_offset", t.xstate_offset);
  a.number("xstate_size", t.xstate_size);
  a.hex("signal_mask", t.signal_mask);
  a.list("pending", t.pending);
  a.hex("alt_stack_base", t.alt_stack_base);
  a.number("alt_stack_size", t.alt_stack_size);
  a.number("alt_stack_flags", t.alt_stack_flags);
  a.hex("robust_list", t.robust_list);
  a.number("robust_list_size", t.robust_list_size);
  a.hex("rseq_address", t.rseq_address);
  a.number("rseq_size", t.rseq_size);
  a.number("rseq_signature", t.rseq_signature);
  a.hex("clear_child_tid", t.clear_child_tid);
  a.choice("restart", t.restart, kRestartNames);
  a.number("sleep_left_ns", t.sleep_left_ns);
  a.number("sched_policy", t.sched_policy);
  a.hex("sched_flags", t.sched_flags);
  a.number("nice", t.nice, -20, 19);
  a.number("sched_priority", t.sched_priority);
  a.number("sched_runtime", t.sched_runtime);
  a.number("sched_deadline", t.sched_deadline);
  a.number("sched_period", t.sched_period);
  a.octets("affinity", t.affinity, 0, 64 * 1024);
  a.number("ioprio", t.ioprio);
  a.number("timer_slack_ns", t.timer_slack_ns);
  a.numbers("uid", t.uid);
  a.numbers("gid", t.gid);
  a.numbers("groups", t.groups);
  a.hex("cap_inheritable", t.cap_inheritable);
  a.hex("cap_permitted", t.cap_permitted);
  a.hex("cap_effective", t.cap_effective);
  a.hex("cap_bounding", t.cap_bounding);
  a.hex("cap_ambient", t.cap_ambient);
  a.number("securebits", t.securebits);
  a.optional().number("parent_death_signal", t.parent_death_signal, 0, 64);
  a.optional().numbers("speculation", t.speculation);
  a.flag("no_new_privs", t.no_new_privs);
  a.list("cgroups", t.cgroups);
  a.object("policy", t.policy);
  a.optional().number("util_min", t.util_min, -1, 1024);
  a.optional().number("util_max", t.util_max, -1, 1024);
  a.optional().number("mce_kill", t.mce_kill, 0, 2);
  a.optional().flag("io_flusher", t.io_flusher);
  a.optional().list("labels", t.labels);
  a.optional().number("personality", t.personality, -1);
}

}  // namespace ckpt::store
