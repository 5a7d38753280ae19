#include "lib/state/threads/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>

#include "lib/base/io.h"
#include "lib/proc/ptrace.h"
#include "lib/proc/rseq.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/threads/clamps.h"

namespace ckpt::restore {

namespace {

using store::Registers;
using store::RestartKind;
using store::Thread;

static_assert(sizeof(Registers) == sizeof(user_regs_struct));

// Places in Registers::value (user_regs_struct).
enum Place { kR10 = 7, kRax = 10, kRdx = 12, kRsi = 13, kRdi = 14, kOrigRax = 15, kRip = 16, kRsp = 19, kFsBase = 21 };

user_regs_struct raw(const Registers& regs) {
  user_regs_struct out;
  std::memcpy(&out, &regs, sizeof out);
  return out;
}

using Scheduling = capture::SchedulingAttributes;

/// Those of ckpt, which its threads and children begin with.
capture::Clamps own_clamps() {
  Scheduling attr{};
  if (::syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0) return {};
  return capture::chosen_clamps(attr, capture::usual_clamps());
}

/// A kernel without clamps refuses them, which is said.
void set_clamps(const Thread& thread, RestorerArea& area, SyscallBatch& batch) {
  constexpr uint64_t kClampsAlone = 0x08 | 0x10 | 0x20 | 0x40;  // SCHED_FLAG_KEEP_ALL, _UTIL_CLAMP; 5.3
  static const capture::Clamps own = own_clamps();
  if (own == capture::Clamps{thread.util_min, thread.util_max}) return;
  Scheduling attr{};
  attr.size = sizeof attr, attr.flags = kClampsAlone;
  attr.util_min = static_cast<uint32_t>(thread.util_min), attr.util_max = static_cast<uint32_t>(thread.util_max);
  batch.try_add("clamp how much of a processor a thread is taken to use", SYS_sched_setattr, 0, area.put(attr), 0);
}

void set_scheduling(const Thread& thread, RestorerArea& area, SyscallBatch& batch) {
  Scheduling attr{};
  attr.size = offsetof(Scheduling, util_min);
  attr.policy = thread.sched_policy, attr.flags = thread.sched_flags;
  attr.nice = thread.nice, attr.priority = thread.sched_priority;
  attr.runtime = thread.sched_runtime, attr.deadline = thread.sched_deadline, attr.period = thread.sched_period;
  // One in a user namespace has no rights to a higher priority: ckpt has.
  const bool by_ckpt =
      state::tree_user() != nullptr && ::syscall(SYS_sched_setattr, thread.tid, &attr, 0) == 0;
  if (!by_ckpt) batch.add("set a thread's scheduling", SYS_sched_setattr, 0, area.put(attr), 0);
  set_clamps(thread, area, batch);
  if (!thread.affinity.empty()) {
    ByteSpan mask(reinterpret_cast<const std::byte*>(thread.affinity.data()), thread.affinity.size());
    // The processors it was bound to may not be there: then it runs on all.
    batch.try_add("bind a thread to processors", SYS_sched_setaffinity, 0, mask.size(), area.put_bytes(mask));
  }
  constexpr int kProcess = 1;  // IOPRIO_WHO_PROCESS: here, the calling thread
  if (thread.ioprio != 0) batch.try_add("set a thread's I/O priority", SYS_ioprio_set, kProcess, 0, thread.ioprio);
  if (thread.timer_slack_ns != 0)
    batch.add("set a thread's timer slack", SYS_prctl, PR_SET_TIMERSLACK, thread.timer_slack_ns, 0, 0, 0);
}

void set_alternate_stack(const Thread& thread, RestorerArea& area, SyscallBatch& batch) {
  constexpr int kDisable = 2, kAutoDisarm = INT32_MIN;
  struct {
    uint64_t base;
    int32_t flags, pad;
    uint64_t size;
  } stack{thread.alt_stack_base, thread.alt_stack_flags & (kDisable | kAutoDisarm), 0, thread.alt_stack_size};
  if (thread.alt_stack_size == 0) stack.flags = kDisable;
  batch.add("set a thread's alternate stack", SYS_sigaltstack, area.put(stack), 0);
}

void set_state(const Thread& thread, RestorerArea& area, SyscallBatch& batch) {
  batch.add("set a thread's tid address", SYS_set_tid_address, thread.clear_child_tid);
  if (thread.robust_list_size != 0)
    batch.add("set a thread's robust list", SYS_set_robust_list, thread.robust_list, thread.robust_list_size);
  set_alternate_stack(thread, area, batch);
  if (thread.rseq_address != 0) {
    batch.add("register a thread's rseq area", SYS_rseq, thread.rseq_address, thread.rseq_size, 0,
              thread.rseq_signature);
  }
  for (size_t i = 0; i < thread.speculation.size(); ++i) {
    if (thread.speculation[i] != 0)
      batch.try_add("restrict a thread's speculation", SYS_prctl, PR_SET_SPECULATION_CTRL, i, thread.speculation[i], 0,
                    0);
  }
  batch.add("set what becomes of a thread with broken memory", SYS_prctl, PR_MCE_KILL, PR_MCE_KILL_SET,
            thread.mce_kill, 0, 0);
  constexpr int kSetIoFlusher = 57;  // PR_SET_IO_FLUSHER, 5.6
  if (thread.io_flusher) batch.try_add("make a thread an I/O flusher", SYS_prctl, kSetIoFlusher, 1, 0, 0, 0);
  batch.add("name a thread", SYS_prctl, PR_SET_NAME, area.put_string(thread.comm), 0, 0, 0);
  set_scheduling(thread, area, batch);
}

/// Of another thread than the first: that one is still to map memory, which READ_IMPLIES_EXEC would change.
void set_own_personality(const store::ProcessImage& image, const Thread& thread, SyscallBatch& batch) {
  constexpr unsigned long kAsk = 0xffffffff;
  static const auto inherited = static_cast<uint64_t>(::personality(kAsk));
  const uint64_t wanted = thread.personality >= 0 ? static_cast<uint64_t>(thread.personality) : image.personality;
  if (wanted != inherited) batch.add("set a thread's personality", SYS_personality, wanted);
}

/// Of an image whose registers still are within a section: registering clears rseq_cs, so the kernel will not do this.
Result<void> leave_critical_section(const Thread& thread, int pid, Registers& regs) {
  uint64_t& rip = regs.value[kRip];
  CKPT_TRY_ASSIGN(rip, proc::resumption_address(pid, thread.rseq_address, rip));
  return {};
}

}  // namespace

void add_hot_addresses(const store::ProcessImage& image, std::vector<uint64_t>& out) {
  for (const Thread& thread : image.threads) {
    for (int place : {kRsp, kRip, kFsBase}) out.push_back(thread.regs.value[static_cast<size_t>(place)]);
    if (thread.rseq_address != 0) out.push_back(thread.rseq_address);
  }
}

namespace {

/// Who has no right to choose a number gets the next one, which ckpt chooses. Until then a process of ckpt's has it,
/// since everybody's next one is near for a moment.
Result<void> create_threads_in_turn(const store::ProcessImage& image, Child& child) {
  constexpr int kTries = 200;
  constexpr const char* kLast = "/proc/sys/kernel/ns_last_pid";
  constexpr uint64_t kLimit = 64;
  std::vector<HeldNumber> held;
  for (size_t i = 1; i < image.threads.size(); ++i) {
    CKPT_TRY_ASSIGN(HeldNumber one, HeldNumber::hold(image.threads[i].tid));
    held.push_back(std::move(one));
  }
  CKPT_TRY_ASSIGN(const UniqueFd last, io::open_file(kLast, O_WRONLY));
  auto set_last = [&](const std::string& number) -> Result<void> {
    if (::pwrite(last.get(), number.data(), number.size(), 0) >= 0) return {};
    return sys_error(kLast, "cannot be written");
  };
  for (size_t i = 1; i < image.threads.size(); ++i) {
    const int tid = image.threads[i].tid;
    for (int tries = 0, got = 0; got != tid; ++tries) {
      if (tries == kTries)
        return fail(Code::kBusy, fmt::format("thread id {}", tid), "is taken by " + holder_of(tid));
      if (tries > 0) ::usleep(10'000);
      held[i - 1].free();
      SyscallBatch batch;
      child.add_thread(batch, 0);
      // As it is now: whoever got a number meanwhile is not to meet it again so soon.
      CKPT_TRY_ASSIGN(const std::string before, io::read_file(kLast, kLimit));
      CKPT_TRY(set_last(std::to_string(tid - 1)));
      Result<void> made = child.run(batch);
      CKPT_TRY(set_last(before));
      CKPT_TRY(std::move(made));
      got = static_cast<int>(batch.calls()[0].result);
      CKPT_TRY(child.await_threads({got}));
      if (got != tid) CKPT_TRY(child.end_thread(got));
    }
  }
  return {};
}

}  // namespace

Result<void> create_threads(const store::ProcessImage& image, Child& child) {
  const state::TreeUser* user = state::tree_user();
  if (user != nullptr && !user->owns("pid") && image.threads.size() > 1) return create_threads_in_turn(image, child);
  SyscallBatch batch;
  std::vector<int> tids;
  for (size_t i = 1; i < image.threads.size(); ++i) {
    child.add_thread(batch, {image.threads[i].tid, image.threads[i].inner_tids});
    tids.push_back(image.threads[i].tid);
  }
  Result<void> made = child.run(batch);
  if (made) return child.await_threads(tids);
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch.calls()[i].result != -EEXIST) continue;
    return fail(Code::kBusy, fmt::format("thread id {}", tids[i]), "is taken by " + holder_of(tids[i]));
  }
  return made;
}

Result<void> run_in_threads(const store::ProcessImage& image, ThreadBatches& batches, Child& child) {
  std::vector<Child::Task> tasks;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (!batches[i].empty()) tasks.push_back({image.threads[i].tid, &batches[i]});
  }
  return child.run_all(tasks);
}

Result<void> set_thread_state(const store::ProcessImage& image, Child& child, std::vector<Registers>& regs,
                              ProgressSink& progress) {
  ThreadBatches batches(image.threads.size());
  regs.clear();
  for (size_t i = 0; i < image.threads.size(); ++i) {
    regs.push_back(image.threads[i].regs);
    CKPT_TRY(leave_critical_section(image.threads[i], image.pid, regs.back()));
    set_state(image.threads[i], child.area(), batches[i]);
    if (i != 0) set_own_personality(image, image.threads[i], batches[i]);
  }
  CKPT_TRY(run_in_threads(image, batches, child));
  for (size_t i = 0; i < batches.size(); ++i) {
    for (const Call& call : batches[i].calls()) {
      if (call.result >= 0) continue;
      progress.note(fmt::format("thread {}: {}", image.threads[i].tid,
                                batches[i].failure(static_cast<size_t>(&call - batches[i].calls().data())).text()));
    }
  }
  return {};
}

Result<void> resume_sleeps(const store::ProcessImage& image, Child& child, std::vector<Registers>& regs) {
  for (size_t i = 0; i < image.threads.size(); ++i) {
    const Thread& thread = image.threads[i];
    auto& value = regs[i].value;
    if (thread.restart == RestartKind::kRepeat) {
      value[kRax] = value[kOrigRax];
      value[kRip] -= 2;  // back on the `syscall` instruction
      value[kOrigRax] = ~0ull;
    }
    if (thread.restart != RestartKind::kSleepLeft) continue;
    timespec left{static_cast<time_t>(thread.sleep_left_ns / 1'000'000'000),
                  static_cast<long>(thread.sleep_left_ns % 1'000'000'000)};
    Call sleep;
    sleep.number = static_cast<uint32_t>(value[kOrigRax]);
    uint64_t request = child.area().put(left);
    if (value[kOrigRax] == SYS_nanosleep) {
      sleep.args[0] = request, sleep.args[1] = value[kRsi];
    } else if (value[kOrigRax] == SYS_clock_nanosleep) {
      sleep.args[0] = value[kRdi], sleep.args[1] = 0, sleep.args[2] = request, sleep.args[3] = value[kR10];
    } else {
      return fail(Code::kCorrupt, fmt::format("thread {}", thread.tid),
                  fmt::format("the image contradicts itself: it slept in system call {}", value[kOrigRax]));
    }
    CKPT_TRY_ASSIGN(int64_t result, child.call_once(thread.tid, child.area().syscall_instruction(), sleep));
    constexpr int64_t kRestartBlock = -516;
    value[kRax] = static_cast<uint64_t>(result);
    if (result != 0 && result != kRestartBlock) {
      return sys_error(static_cast<int>(-result), fmt::format("thread {}", thread.tid), "cannot go back to sleep");
    }
    if (result == 0) value[kOrigRax] = ~0ull;
  }
  return {};
}

Result<void> set_final_registers(const store::ProcessImage& image, const std::vector<Registers>& regs) {
  for (size_t i = 0; i < image.threads.size(); ++i) {
    CKPT_TRY(proc::set_registers(image.threads[i].tid, raw(regs[i])));
    CKPT_TRY(proc::set_signal_mask(image.threads[i].tid, image.threads[i].signal_mask));
  }
  return {};
}

}  // namespace ckpt::restore
